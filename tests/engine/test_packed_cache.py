"""Packed weights on disk: read again bit for bit, made anew when anything about them is wrong."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.checkpoints import tiny_checkpoint
from support.native import thread_pool
from tiergate.engine import packed_file
from tiergate.engine.loader import read_operands, read_spec
from tiergate.engine.packed_cache import PackedCache, fingerprint
from tiergate.engine.packing import NativePrecision, pack_operands

PRECISIONS: list[NativePrecision] = ["bf16", "int8", "int4"]


@pytest.fixture(scope="module", autouse=True)
def _core() -> None:
    torch.set_num_threads(1)
    thread_pool(1)  # skips where there is no native core


@pytest.fixture(scope="module", params=["llama", "qwen3_moe"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp(request.param), request.param, hidden_size=64)


@pytest.fixture
def cache(tmp_path: Path) -> PackedCache:
    return PackedCache(tmp_path / "packed", least=0)


def kept(cache: PackedCache) -> Path:
    assert cache.folder is not None
    (path,) = cache.folder.iterdir()
    return path


def bytes_of(cache: PackedCache, folder: Path, precision: NativePrecision = "int8") -> bytes:
    model = cache.load(folder, read_spec(folder), precision)
    weights = [model.head.weight, *(layer.qkv.weight for layer in model.layers)]
    return b"".join(bytes(one.data.numpy()) for one in weights) + bytes(model.embedding.view(torch.uint8).numpy())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_second_start_reads_what_the_first_made(
    precision: NativePrecision, folder: Path, cache: PackedCache, caplog: pytest.LogCaptureFixture
) -> None:
    first = bytes_of(cache, folder, precision)
    made = kept(cache).stat()
    with caplog.at_level(logging.INFO):
        assert bytes_of(cache, folder, precision) == first
    assert "read" in caplog.text
    assert "packed the weights" not in caplog.text
    assert kept(cache).stat().st_mtime_ns == made.st_mtime_ns


def test_all_of_the_memory_comes_back(folder: Path, tmp_path: Path) -> None:
    spec = read_spec(folder)
    layout, room = pack_operands(spec, dict(read_operands(folder, spec)), "int4")
    packed_file.write(tmp_path / "a", "me", layout, room)
    found = packed_file.read(tmp_path / "a", "me", spec)
    assert found is not None
    assert found[0] == layout
    assert torch.equal(found[1], room)
    assert packed_file.read(tmp_path / "a", "another", spec) is None
    assert packed_file.read(tmp_path / "b", "me", spec) is None


def test_a_changed_checkpoint_is_packed_anew(tmp_path: Path, cache: PackedCache) -> None:
    folder = tiny_checkpoint(tmp_path / "model", seed=1)
    first = bytes_of(cache, folder)
    tiny_checkpoint(folder, seed=2)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert bytes_of(cache, folder) != first
    kept(cache)


def test_what_a_fingerprint_depends_on(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path)
    first = fingerprint(folder, "int8")
    assert fingerprint(folder, "int8") == first
    assert fingerprint(folder, "int4") != first
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert (second := fingerprint(folder, "int8")) != first
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()), indent=1))
    assert fingerprint(folder, "int8") != second


def test_small_models_are_not_kept(folder: Path, tmp_path: Path) -> None:
    cache = PackedCache(tmp_path / "packed")
    cache.load(folder, read_spec(folder), "int8")
    assert not (tmp_path / "packed").exists()


def test_a_folder_that_others_can_write_to_is_not_believed(
    folder: Path, cache: PackedCache, caplog: pytest.LogCaptureFixture
) -> None:
    assert cache.folder is not None
    first = bytes_of(cache, folder)
    data = bytearray(kept(cache).read_bytes())
    cache.folder.chmod(0o777)
    assert bytes_of(cache, folder) == first
    assert "others can write" in caplog.text
    assert kept(cache).read_bytes() == data


def test_a_full_disk_costs_nothing_but_the_file(
    folder: Path, cache: PackedCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packed_file, "write", fail)
    bytes_of(cache, folder)
    assert "No space left" in caplog.text


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_damaged_file_is_found_and_made_anew(data: st.DataObject, folder: Path, cache: PackedCache) -> None:
    """Any byte changed, the file cut short anywhere, or anything at all in its place."""
    first = bytes_of(cache, folder)
    path = kept(cache)
    whole = path.read_bytes()
    header_end = whole.index(b"\n")
    place = st.integers(0, header_end) | st.integers(-(-header_end // 4096) * 4096, len(whole) - 1)
    how = data.draw(st.sampled_from(["flip", "cut", "longer", "junk"]))
    if how == "flip":
        at = data.draw(place)
        broken = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    elif how == "cut":
        broken = whole[: data.draw(st.integers(0, len(whole) - 1))]
    elif how == "longer":
        broken = whole + b"\0"
    else:
        broken = data.draw(st.binary(max_size=200))
    path.write_bytes(broken)
    assert bytes_of(cache, folder) == first
    path.write_bytes(whole)
    assert bytes_of(cache, folder) == first
