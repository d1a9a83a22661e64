"""From a URL to a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiergate.budget import BadSetting, StoreUnavailable, open_store


@pytest.mark.parametrize("url", ["", "sqlite", "nosuch:", "__init__:", "../sqlite:", "memory:name"])
def test_a_url_that_makes_no_sense(url: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"budget\.store"):
        open_store(url, folder=tmp_path)


@pytest.mark.parametrize(
    ("place", "file"),
    [("", "data/budget.sqlite3"), ("b.db", "data/b.db"), ("deep/b.db", "data/deep/b.db"), ("{}/b.db", "b.db"),
     ("//{}/b.db", "b.db")],
)  # fmt: skip
async def test_where_a_file_lies(place: str, file: str, tmp_path: Path) -> None:
    store = open_store("sqlite:" + place.format(tmp_path), folder=tmp_path / "data")
    assert (tmp_path / file).is_file()
    await store.close()


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        open_store("sqlite:", folder=Path("/dev/null"))
    (tmp_path / "other").write_text("this is not a database, however long one looks at it. " * 100)
    with pytest.raises(StoreUnavailable, match="not a database"):
        open_store("sqlite:other", folder=tmp_path)
