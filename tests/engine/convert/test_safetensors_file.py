"""Written files are what the safetensors library reads, and damaged ones are named."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from tiergate.engine import ModelError
from tiergate.engine.convert.safetensors_file import TensorSlot, read_header, writing

LAYOUT = {"a": TensorSlot("F32", (2, 3)), "empty": TensorSlot("F16", (0, 4)), "b": TensorSlot("U8", (5,))}
VALUES = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "empty": np.empty((0, 4), dtype=np.float16),
    "b": np.arange(5, dtype=np.uint8),
}


def write(path: Path) -> None:
    with writing(path, LAYOUT) as writer:
        for name, value in VALUES.items():
            writer.write(name, value.tobytes())


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    write(tmp_path / "m.safetensors")
    loaded = load_file(tmp_path / "m.safetensors")
    assert loaded.keys() == VALUES.keys()
    for name, value in VALUES.items():
        np.testing.assert_array_equal(loaded[name], value)
        assert loaded[name].dtype == value.dtype


def test_the_header_is_what_the_library_writes(tmp_path: Path) -> None:
    save_file(VALUES, tmp_path / "m.safetensors", metadata={"format": "pt"})
    header = read_header(tmp_path / "m.safetensors")
    data = (tmp_path / "m.safetensors").read_bytes()
    for name, info in header.items():
        assert (info.dtype, info.shape) == (LAYOUT[name].dtype, LAYOUT[name].shape)
        assert data[info.start : info.stop] == VALUES[name].tobytes()


def test_nothing_appears_before_the_end(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), writing(tmp_path / "m.safetensors", LAYOUT) as writer:
        writer.write("a", VALUES["a"].tobytes())
        assert [path.name for path in tmp_path.iterdir()] != ["m.safetensors"]
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_an_older_file_survives_a_failed_write(tmp_path: Path) -> None:
    write(tmp_path / "m.safetensors")
    before = (tmp_path / "m.safetensors").read_bytes()
    with pytest.raises(AssertionError), writing(tmp_path / "m.safetensors", LAYOUT) as writer:
        writer.write("b", b"12345")
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
    assert (tmp_path / "m.safetensors").read_bytes() == before


def test_a_tensor_left_out_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="never written"), writing(tmp_path / "m.safetensors", LAYOUT) as writer:
        writer.write("a", VALUES["a"].tobytes())
    assert list(tmp_path.iterdir()) == []


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError):
            read_header(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_header(tmp_path / "absent.safetensors")


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"a": 1},
        {"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 4]}},
        {"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [-4, 4]}},
    ],
)
def test_damaged_headers(header: object, tmp_path: Path) -> None:
    raw = json.dumps(header).encode()
    (tmp_path / "m.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(8))
    with pytest.raises(ModelError):
        read_header(tmp_path / "m.safetensors")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_any_bytes_hold_no_tensor_or_end_in_a_model_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    with suppress(ModelError):
        assert read_header(tmp_path / "m.safetensors") == {}
