"""The file of KV blocks: what was put comes back, after a restart too, and nothing else ever does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiergate.engine.tiering.disk import DiskStore
from tiergate.engine.tiering.saved import Saved
from tiergate.engine.tiering.secret import stored_secret

SIZE, IDS = 100, 32


def store(path: Path, *, origin: str = "weights", blocks: int = 4) -> DiskStore:
    slot = 4096
    return DiskStore(
        path / "kv" / "lane.kv", origin=origin, block_bytes=SIZE, ids_bytes=IDS, budget=4096 + blocks * slot
    )


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


def block(number: int) -> Saved:
    return Saved(key(number + 1000), bytes([number % 256]) * IDS, bytes([255 - number % 256]) * SIZE)


def test_what_was_put_comes_back(tmp_path: Path) -> None:
    kept = store(tmp_path)
    assert kept.put(key(1), block(1)) == ()
    assert kept.get(key(1)) == block(1)
    assert kept.get(key(2)) is None
    kept.drop(key(1))
    assert kept.get(key(1)) is None
    kept.close()


def test_the_least_recently_used_makes_room(tmp_path: Path) -> None:
    kept = store(tmp_path, blocks=3)
    for number in (1, 2, 3):
        kept.put(key(number), block(number))
    kept.get(key(1))
    assert kept.put(key(4), block(4)) == (key(2),)
    assert list(kept.keys()) == [key(3), key(1), key(4)]
    assert kept.put(key(3), block(3)) == ()
    assert list(kept.keys()) == [key(1), key(4), key(3)]
    kept.close()


def test_a_restart_finds_it_again_in_order_of_age(tmp_path: Path) -> None:
    kept = store(tmp_path, blocks=3)
    for number in (5, 4, 3, 2):
        kept.put(key(number), block(number))
    kept.drop(key(3))
    kept.close()
    again = store(tmp_path, blocks=3)
    assert list(again.keys()) == [key(4), key(2)]
    assert again.get(key(2)) == block(2)
    again.put(key(9), block(9))
    assert again.put(key(10), block(10)) == (key(4),)
    again.close()


def test_blocks_of_other_weights_are_no_blocks(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.put(key(1), block(1))
    kept.close()
    other = store(tmp_path, origin="other weights")
    assert list(other.keys()) == []
    other.close()
    back = store(tmp_path)
    assert list(back.keys()) == []
    back.close()


def test_a_smaller_budget_keeps_what_fits(tmp_path: Path) -> None:
    kept = store(tmp_path, blocks=4)
    for number in range(4):
        kept.put(key(number), block(number))
    kept.close()
    less = store(tmp_path, blocks=2)
    assert len(less.keys()) == 2
    assert (tmp_path / "kv" / "lane.kv").stat().st_size <= 4096 * 3
    less.close()


def test_one_process_at_a_time_in_a_folder_of_its_own(tmp_path: Path) -> None:
    kept = store(tmp_path)
    with pytest.raises(OSError):  # noqa: PT011  (which one is the system's business)
        store(tmp_path)
    kept.close()
    (tmp_path / "kv").chmod(0o777)
    with pytest.raises(PermissionError, match="others can write"):
        store(tmp_path)
    (tmp_path / "kv").chmod(0o700)
    assert (tmp_path / "kv" / "lane.kv").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="hold no KV block"):
        store(tmp_path, blocks=0)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 4096 * 3 - 1), flip=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_file_gives_right_blocks_or_none(tmp_path: Path, at: int, flip: int, cut: bool) -> None:
    path = tmp_path / "kv" / "lane.kv"
    path.unlink(missing_ok=True)
    kept = store(tmp_path, blocks=2)
    for number in range(2):
        kept.put(key(number), block(number))
    kept.close()
    data = bytearray(path.read_bytes().ljust(4096 * 3, b"\0"))
    if cut:
        del data[at:]
    else:
        data[at] ^= flip
    path.write_bytes(data)
    again = store(tmp_path, blocks=2)
    for number in range(2):
        assert again.get(key(number)) in (None, block(number))
        again.put(key(number), block(number))
        assert again.get(key(number)) == block(number)
    again.close()


def test_the_secret_is_made_once_and_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "kv" / "lane.key"
    secret = stored_secret(path)
    assert len(secret) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert stored_secret(path) == secret
    assert stored_secret(tmp_path / "kv" / "other.key") != secret
    path.chmod(0o644)
    with pytest.raises(PermissionError, match="others can read"):
        stored_secret(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(OSError, match="not a secret"):
        stored_secret(path)
    path.unlink()
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(OSError):  # noqa: PT011
        stored_secret(path)
