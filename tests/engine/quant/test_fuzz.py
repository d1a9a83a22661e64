"""Weight files with anything wrong in them are model errors, never anything worse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.checkpoints import tiny_checkpoint
from support.quantised import write_awq, write_gptq, write_packed, write_rows
from tiergate.engine import ModelError, inspect_model
from tiergate.engine.loader import read_operands, read_spec
from tiergate.engine.quant.operands import Dense, Int4, Int8

WRITERS = {"plain": lambda _: None, "awq": write_awq, "gptq": write_gptq, "packed": write_packed, "rows": write_rows}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=WRITERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tiny_checkpoint(tmp_path_factory.mktemp(request.param), hidden_size=64, intermediate_size=128)
    WRITERS[request.param](made)
    return made


def read(folder: Path) -> None:
    """Either all operands come out, in their shapes, or a `ModelError` does."""
    try:
        operands = dict(read_operands(folder, read_spec(folder)))
    except ModelError:
        return
    for operand in operands.values():
        assert isinstance(operand, Dense | Int4 | Int8)
        assert tuple(operand.dense().shape) == operand.shape
        if isinstance(operand, Int4):
            assert int(operand.codes.max()) <= 15


def damaged(folder: Path, copy: Path, name: str, data: bytes) -> Path:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    (copy / name).write_bytes(data)
    return copy


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_damaged_safetensors_file(data: st.DataObject, folder: Path, tmp_path: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    how = data.draw(st.sampled_from(["header", "anywhere", "cut", "junk"]))
    if how == "cut":
        broken = whole[: data.draw(st.integers(0, len(whole) - 1))]
    elif how == "junk":
        broken = data.draw(st.binary(max_size=100))
    else:
        at = data.draw(st.integers(0, (header if how == "header" else len(whole)) - 1))
        broken = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    copy = damaged(folder, tmp_path / "copy", "model.safetensors", broken)
    read(copy)
    try:
        inspect_model(copy)
    except ModelError:
        return


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 200) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_quantization_config_of_anything(data: st.DataObject, folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    found = config.get("quantization_config") or {"quant_method": "gptq", "bits": 4, "group_size": 64}
    if data.draw(st.booleans()):
        config["quantization_config"] = data.draw(_JSON)
    else:
        key = data.draw(st.sampled_from(sorted(found)))
        config["quantization_config"] = {**found, key: data.draw(_JSON)}
    read(damaged(folder, tmp_path / "copy", "config.json", json.dumps(config).encode()))
