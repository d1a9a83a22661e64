"""Quantised checkpoints are read as what their own formulas say they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fakes.checkpoints import tiny_checkpoint
from support.quantised import Tensors, write_awq, write_gptq, write_packed, write_rows
from tiergate.engine import ModelError, inspect_model
from tiergate.engine.loader import load_weights, read_operands, read_spec
from tiergate.engine.quant.operands import Dense, Int4, Int8, Operand

CPU = torch.device("cpu")
SIZES = {"hidden_size": 128, "intermediate_size": 192}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def made(tmp_path: Path, arch: str = "llama", **config: Any) -> Path:
    return tiny_checkpoint(tmp_path / arch, arch, **(SIZES | config))


def operands(folder: Path) -> dict[str, Operand]:
    return dict(read_operands(folder, read_spec(folder)))


def stacked(values: Tensors, prefix: str, names: str) -> torch.Tensor:
    return torch.cat([values[f"{prefix}{name}.weight"] for name in names.split()])


WRITERS: dict[str, tuple[Callable[[Path], Tensors], type[Operand]]] = {
    "awq 64": (partial(write_awq, group=64), Int4),
    "awq 32": (partial(write_awq, group=32), Int4),
    "gptq symmetric": (write_gptq, Int4),
    "gptq asymmetric": (partial(write_gptq, symmetric=False), Int4),
    "gptq v2": (partial(write_gptq, symmetric=False, form="gptq_v2"), Int4),
    "gptq rows": (partial(write_gptq, group=-1), Int4),
    "gptq act-order": (partial(write_gptq, act_order=True), Dense),
    "gptq small groups": (partial(write_gptq, group=16), Dense),
    "packed symmetric": (write_packed, Int4),
    "packed asymmetric": (partial(write_packed, symmetric=False), Int4),
    "packed rows": (partial(write_packed, group=0), Int4),
    "rows": (write_rows, Int8),
}


@pytest.mark.parametrize("layout", WRITERS)
def test_matrices_are_what_the_layout_says(layout: str, tmp_path: Path) -> None:
    write, kind = WRITERS[layout]
    folder = made(tmp_path)
    values = write(folder)
    read = operands(folder)
    for index in range(2):
        at, ours = f"model.layers.{index}.", f"layers.{index}."
        for name, wanted in {
            "qkv": stacked(values, f"{at}self_attn.", "q_proj k_proj v_proj"),
            "out": stacked(values, f"{at}self_attn.", "o_proj"),
            "gate_up": stacked(values, f"{at}mlp.", "gate_proj up_proj"),
            "down": stacked(values, f"{at}mlp.", "down_proj"),
        }.items():
            found = read[ours + name]
            assert isinstance(found, kind), name
            # A minimum is rounded to float16; of symmetric weights it is exact.
            off = (found.dense() - wanted).abs().max().item()
            assert off <= (0 if "asymmetric" not in layout and "v2" not in layout and "awq" not in layout else 2e-3)
    assert isinstance(read["embed"], Dense)


@pytest.mark.parametrize("group", [64, 128])
def test_wide_groups_are_cut_into_those_of_the_kernels(group: int, tmp_path: Path) -> None:
    folder = made(tmp_path, hidden_size=128, intermediate_size=256)
    values = write_gptq(folder, group)
    down = operands(folder)["layers.0.down"]
    assert isinstance(down, Int4)
    assert down.group == 64
    assert torch.equal(down.dense(), values["model.layers.0.mlp.down_proj.weight"])


@pytest.mark.parametrize("layout", ["awq 64", "rows", "gptq act-order"])
def test_the_torch_runner_gets_plain_numbers(layout: str, tmp_path: Path) -> None:
    folder = made(tmp_path)
    values = WRITERS[layout][0](folder)
    loaded = load_weights(folder, read_spec(folder), torch.float32, CPU)
    torch.testing.assert_close(
        loaded["layers.1.down"], values["model.layers.1.mlp.down_proj.weight"], rtol=0, atol=2e-3
    )


def test_experts_are_stacked_and_taken_apart(tmp_path: Path) -> None:
    folder = made(tmp_path, "mixtral")
    values = write_gptq(folder)
    read = operands(folder)
    found = read["layers.1.experts_gate_up"]
    assert isinstance(found, Int4)
    assert found.shape == (4, 384, 128)
    for index, expert in enumerate(found.split()):
        wanted = stacked(values, f"model.layers.1.block_sparse_moe.experts.{index}.", "w1 w3")
        assert torch.equal(expert.dense(), wanted)
    assert isinstance(read["layers.1.router"], Dense)


def test_a_mixture_of_kinds_becomes_plain_numbers(tmp_path: Path) -> None:
    folder = made(tmp_path)
    plain = load_file(folder / "model.safetensors")["model.layers.0.self_attn.k_proj.weight"]
    values = write_gptq(folder)
    tensors = load_file(folder / "model.safetensors")
    for part in ("qweight", "qzeros", "scales", "g_idx"):
        del tensors[f"model.layers.0.self_attn.k_proj.{part}"]
    save_file(tensors | {"model.layers.0.self_attn.k_proj.weight": plain}, folder / "model.safetensors")
    qkv = operands(folder)["layers.0.qkv"]
    assert isinstance(qkv, Dense)
    values["model.layers.0.self_attn.k_proj.weight"] = plain
    assert torch.equal(qkv.dense(), stacked(values, "model.layers.0.self_attn.", "q_proj k_proj v_proj"))


def test_a_word_of_each_layout_by_hand() -> None:
    """0x76543210: eight values, the lowest bits first; AutoAWQ keeps outputs 0 2 4 6 1 3 5 7 in that order."""
    from tiergate.engine.quant.parts import words

    word = torch.tensor([[0x76543210]], dtype=torch.int32)
    assert words(word).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert words(word, (0, 2, 4, 6, 1, 3, 5, 7)).tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]]
    assert words(word, dim=0).tolist() == [[0], [1], [2], [3], [4], [5], [6], [7]]
    assert words(torch.tensor([-1], dtype=torch.int32)).tolist() == [15] * 8


@pytest.mark.parametrize("layout", ["awq 64", "gptq symmetric", "packed symmetric", "rows"])
def test_the_summary_counts_what_codes_stand_for(layout: str, tmp_path: Path) -> None:
    folder = made(tmp_path)
    plain = inspect_model(folder)
    WRITERS[layout][0](folder)
    assert inspect_model(folder).parameters == plain.parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 64}, "bits = 8"),
        ({"quant_method": "gptq", "bits": 4}, "group_size"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 48}, "groups of 48"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64, "checkpoint_format": "marlin"}, "marlin"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemv"}, "gemv"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "config_groups"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": {"a": {"weights": {"type": "float", "num_bits": 8, "strategy": "channel"}}},
            },
            "float",
        ),
        ("awq", "no object"),
    ],
)
def test_other_ways_are_refused_by_name(change: Any, message: str, tmp_path: Path) -> None:
    folder = made(tmp_path)
    write_gptq(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": change}))
    with pytest.raises(ModelError, match=message):
        operands(folder)


def _without(part: str) -> Callable[[Tensors], object]:
    return lambda tensors: [tensors.pop(name) for name in list(tensors) if name.endswith(f"q_proj.{part}")]


def _put(part: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], object]:
    name = f"model.layers.0.self_attn.q_proj.{part}"
    return lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("scales"), "no tensor .*q_proj.scales"),
        (_without("qweight"), "q_proj.weight"),
        (_put("qzeros", lambda one: one[:, :-1]), "q_proj.qzeros has shape"),
        (_put("qweight", lambda one: one.long()), "q_proj.qweight has dtype"),
        (_put("qweight", lambda one: one[:-1]), "q_proj.weight has shape"),
        (_put("qweight", lambda one: one.flatten()), "no matrix"),
        (_put("scales", lambda one: one * float("nan")), "finite"),
        (_put("g_idx", lambda one: one + 1), "g_idx names groups"),
    ],
)
def test_damaged_parts_are_named(change: Callable[[Tensors], object], message: str, tmp_path: Path) -> None:
    folder = made(tmp_path)
    write_gptq(folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        operands(folder)


def test_a_config_of_an_unknown_way_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    folder = made(tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": "hqq"}}))
    with pytest.raises(ModelError, match="hqq"):
        read_spec(folder)
    with pytest.raises(ModelError, match="hqq"):
        inspect_model(folder)
