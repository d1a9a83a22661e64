"""How a model lies in memory: in order of use, aligned, each operand in its format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fakes.checkpoints import tiny_checkpoint
from support.native import thread_pool
from tiergate.engine.loader import load_weights, read_spec
from tiergate.engine.packing import (
    ALIGNMENT,
    Kind,
    NativePrecision,
    Plain,
    assemble,
    choose_kinds,
    kind_of,
    lay_out,
    pack_operands,
)
from tiergate.engine.quant.operands import Dense, Int4, Int8, Operand
from tiergate.kernels import Format, PackedDense, PackedExperts, PackedModel, huge_bytes
from tiergate.kernels.packing import unpack


@pytest.fixture(scope="module", autouse=True)
def _core() -> None:
    torch.set_num_threads(1)
    thread_pool(1)  # skips where there is no native core


@pytest.fixture(scope="module", params=["qwen2", "qwen3_moe"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp(request.param), request.param, tie_word_embeddings=True)


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    return load_weights(folder, read_spec(folder), torch.float32, torch.device("cpu"))


def operands(weights: dict[str, torch.Tensor]) -> dict[str, Operand]:
    return {name: Dense(tensor) for name, tensor in weights.items()}


def packed(folder: Path, weights: dict[str, torch.Tensor], precision: NativePrecision) -> PackedModel:
    spec = read_spec(folder)
    return assemble(spec, *pack_operands(spec, operands(weights), precision))


@pytest.mark.parametrize(
    ("name", "inputs", "precision", "want"),
    [
        ("layers.0.qkv", 576, "bf16", Kind(Format.BF16)),
        ("layers.0.qkv", 576, "int8", Kind(Format.INT8, rotated=True)),
        ("layers.0.out", 576, "int8", Kind(Format.INT8)),
        ("layers.0.qkv", 560, "int8", Kind(Format.INT8)),
        ("layers.0.qkv", 576, "int4", Kind(Format.INT4, 32)),
        ("layers.0.down", 33, "int4", Kind(Format.INT8)),
        ("layers.0.router", 576, "int8", Kind(Format.BF16)),
        ("layers.0.router", 576, "int4", Kind(Format.BF16)),
        ("head", 576, "int4", Kind(Format.INT8, rotated=True)),
    ],
)
def test_formats(name: str, inputs: int, precision: NativePrecision, want: Kind) -> None:
    assert kind_of(name, Dense(torch.empty(2, inputs)), precision) == want


def test_codes_keep_their_groups() -> None:
    for group in (32, 64):
        halves = torch.ones(2, 128 // group, dtype=torch.float16)
        four = Int4(torch.zeros(2, 128, dtype=torch.uint8), halves, halves)
        assert kind_of("layers.0.qkv", four, "int4") == Kind(Format.INT4, group)
        assert kind_of("layers.0.qkv", four, "int8") == Kind(Format.INT8, rotated=True)
        assert kind_of("head", four, "int4") == Kind(Format.INT8, rotated=True)
    eight = Int8(torch.zeros(2, 128, dtype=torch.int8), torch.ones(2))
    assert kind_of("layers.0.qkv", eight, "int8") == Kind(Format.INT8)
    assert kind_of("layers.0.qkv", eight, "bf16") == Kind(Format.BF16)


def test_slots_lie_one_behind_another_in_order_of_use(folder: Path) -> None:
    spec, weights = read_spec(folder), loaded(folder)
    layout = lay_out(spec, choose_kinds(operands(weights | {"head": weights["embed"]}), "int4"))
    end = 0
    for slot in layout.slots.values():
        assert slot.start % ALIGNMENT == 0
        assert 0 <= slot.start - end < ALIGNMENT
        end = slot.start + slot.of.bytes
    assert end <= layout.bytes < end + ALIGNMENT
    names = list(layout.slots)
    assert names[0] == "embed"
    assert names[-1] == "head"
    stacked = {name for name, tensor in weights.items() if tensor.dim() == 3}
    experts = {f"{name}.{i}" for name in stacked for i in range(len(weights[name]))}
    assert set(names) == weights.keys() - stacked | experts | {"head"}
    first, second = names.index("layers.0.qkv"), names.index("layers.1.qkv")
    assert first < names.index("layers.0.out") < names.index("layers.0.mlp_norm") < second


def test_the_model_holds_what_the_checkpoint_does(folder: Path) -> None:
    weights = loaded(folder)
    model = packed(folder, weights, "bf16")
    assert torch.equal(model.embedding, weights["embed"].bfloat16())
    assert torch.equal(unpack(model.head.weight), weights["embed"].bfloat16().float())
    assert torch.equal(model.norm, weights["norm"])
    for index, layer in enumerate(model.layers):
        prefix = f"layers.{index}."
        assert torch.equal(unpack(layer.qkv.weight), weights[prefix + "qkv"].bfloat16().float())
        if isinstance(layer.mlp, PackedDense):
            assert layer.qkv.bias is not None
            assert torch.equal(layer.qkv.bias, weights[prefix + "qkv_bias"])
            assert torch.equal(unpack(layer.mlp.gate_up.weight), weights[prefix + "gate_up"].bfloat16().float())
        else:
            assert isinstance(layer.mlp, PackedExperts)
            assert layer.q_norm is not None
            assert torch.equal(layer.q_norm, weights[prefix + "q_norm"])
            for expert, down in enumerate(layer.mlp.down):
                assert torch.equal(unpack(down.weight), weights[prefix + "experts_down"][expert].bfloat16().float())


def test_memory_that_was_filled_before_makes_the_same_model(folder: Path) -> None:
    """As a file of packed weights would."""
    spec, weights = read_spec(folder), loaded(folder)
    given = operands(weights)
    layout, room = pack_operands(spec, given, "int8")
    assert not given
    again = huge_bytes(layout.bytes)
    again.copy_(room)
    one, other = assemble(spec, layout, room), assemble(spec, layout, again)
    assert torch.equal(unpack(one.head.weight), unpack(other.head.weight))
    assert one.head.weight.data.data_ptr() != other.head.weight.data.data_ptr()
    assert {slot.of.dtype for slot in layout.slots.values() if isinstance(slot.of, Plain)} == {
        torch.bfloat16,
        torch.float32,
    }


@pytest.mark.parametrize("count", [0, 1, 100, 1 << 21, (1 << 21) + 1])
def test_huge_bytes_are_zeros_from_a_huge_page_on(count: int) -> None:
    memory = huge_bytes(count)
    assert memory.shape == (count,)
    assert not memory.any()
    if count:
        assert memory.data_ptr() % (1 << 21) == 0
        memory.fill_(7)
        assert memory.sum(dtype=torch.int64) == 7 * count
