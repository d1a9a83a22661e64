"""Smoothing changes who is precise, never what is computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fakes.checkpoints import tiny_checkpoint
from support.quantised import write_gptq
from tiergate.engine.loader import read_operands, read_spec
from tiergate.engine.packing import choose_kinds
from tiergate.engine.quant.operands import Dense, Operand
from tiergate.engine.smoothing import LIMIT, factors_of, smooth


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def loaded(folder: Path) -> dict[str, Operand]:
    """With a few channels that norms make large."""
    operands = dict(read_operands(folder, read_spec(folder)))
    for name, one in operands.items():
        if name.endswith("norm"):
            one.dense()[3:6] *= 100
    return operands | {"head": operands.get("head", operands["embed"])}


def rotated(operands: dict[str, Operand], precision: str) -> set[str]:
    return {name for name, kind in choose_kinds(operands, precision).items() if kind.rotated}  # type: ignore[arg-type]


@pytest.mark.parametrize("arch", ["llama", "qwen3_moe"])
def test_norm_times_matrix_stays_what_it_was_to_the_bit(arch: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, arch, hidden_size=64, tie_word_embeddings=True)
    before, after = loaded(folder), loaded(folder)
    smooth(read_spec(folder), after, rotated(before, "int8"))
    readers = {"norm": ["head"]}
    for index in range(2):
        at = f"layers.{index}."
        readers[at + "attention_norm"] = [at + "qkv"]
        readers[at + "mlp_norm"] = [at + "gate_up"] if arch == "llama" else [at + "experts_gate_up", at + "router"]
    changed = 0
    for norm, matrices in readers.items():
        changed += not torch.equal(before[norm].dense(), after[norm].dense())
        for name in matrices:
            was = before[norm].dense().double() * before[name].dense().double()
            assert torch.equal(was, after[norm].dense().double() * after[name].dense().double())
    assert changed == len(readers)
    others = before.keys() - readers.keys() - {name for names in readers.values() for name in names}
    assert all(torch.equal(before[name].dense(), after[name].dense()) for name in others)


def test_only_what_is_rounded_to_8_bits_is_smoothed(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, hidden_size=64, intermediate_size=128)
    write_gptq(folder)
    before, after = loaded(folder), loaded(folder)
    smooth(read_spec(folder), after, rotated(before, "int4"))
    assert {name for name in before if before[name] is not after[name] and not _same(before[name], after[name])} == {
        "norm",
        "head",
    }


def _same(one: Operand, other: Operand) -> bool:
    return torch.equal(one.dense(), other.dense())


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20), st.integers(0, 5))
def test_factors_are_powers_of_two_within_bounds(norm: list[float], zero: int) -> None:
    weights = torch.tensor(norm)
    matrix = torch.linspace(0.1, 3, 3 * len(norm)).view(3, -1)
    matrix[:, : min(zero, len(norm))] = 0
    factors = factors_of(weights, [matrix])
    assert torch.equal(factors, torch.exp2(factors.log2().round()))
    assert factors.log2().abs().max() <= LIMIT


def test_a_large_channel_becomes_smaller_and_its_column_larger() -> None:
    norm, matrix = torch.ones(8), torch.ones(4, 8)
    norm[2] = 256.0
    factors = factors_of(norm, [matrix])
    assert factors[2] > factors[0]
    assert (norm / factors).max() < norm.max()


def test_dense_operands_of_other_kinds_are_left_alone(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, hidden_size=96)  # 96 inputs are not rotated
    before, after = loaded(folder), loaded(folder)
    smooth(read_spec(folder), after, rotated(before, "int8"))
    assert all(isinstance(one, Dense) for one in after.values())
    assert all(before[name].dense().equal(after[name].dense()) for name in before)
