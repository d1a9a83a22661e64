"""Model folders: what is read, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fakes.checkpoints import tiny_checkpoint, tiny_model
from support.paged import Paged
from tiergate.engine import LaneConfig, ModelError
from tiergate.engine.architecture import snake_case
from tiergate.engine.loader import load_weights, read_spec
from tiergate.engine.runners.torch import open as open_runner

IDS = [3, 17, 80, 41, 5, 9]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "model")


def edit(folder: Path, **changes: Any) -> None:
    """Change fields of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Let `change` edit the checkpoint's tensors in place."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def logits(folder: Path) -> torch.Tensor:
    lane = LaneConfig(name="lane", model=str(folder), precision="fp32", block_size=4, blocks=8)
    return Paged(open_runner(lane, "cpu")).step({"a": IDS})["a"]


def load(folder: Path) -> dict[str, torch.Tensor]:
    return load_weights(folder, read_spec(folder), torch.float32, CPU)


def test_operands_are_stacked_in_order(folder: Path) -> None:
    plain, stacked = load_file(folder / "model.safetensors"), load(folder)
    parts = [plain[f"model.layers.1.self_attn.{one}_proj.weight"] for one in "qkv"]
    assert torch.equal(stacked["layers.1.qkv"], torch.cat(parts))
    parts = [plain[f"model.layers.0.mlp.{one}_proj.weight"] for one in ("gate", "up")]
    assert torch.equal(stacked["layers.0.gate_up"], torch.cat(parts))


def test_a_sharded_checkpoint_is_the_same_model(folder: Path, tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    assert torch.equal(logits(tmp_path / "shards"), logits(folder))


@pytest.mark.parametrize("arch", ["qwen3_moe", "mixtral"])
def test_stacked_experts_are_the_same_model(arch: str, tmp_path: Path) -> None:
    """A module's own state, with each layer's experts in one tensor, beside the published layout."""
    published, stacked = tiny_checkpoint(tmp_path / "a", arch), tiny_checkpoint(tmp_path / "b", arch)
    state = tiny_model(arch).state_dict()
    assert any(name.endswith("experts.gate_up_proj") for name in state)
    assert not any(name.endswith("experts.gate_up_proj") for name in load_file(published / "model.safetensors"))
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, stacked / "model.safetensors")
    assert torch.equal(logits(stacked), logits(published))


def test_weights_take_the_lane_dtype(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({name: tensor.half() for name, tensor in tensors.items()}))
    weights = load_weights(folder, read_spec(folder), torch.bfloat16, CPU)
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}


def test_a_tied_model_may_store_its_head(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, tie_word_embeddings=True)
    before = logits(folder)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(96, 32)}))
    assert torch.equal(logits(folder), before)


def test_buffers_of_old_checkpoints_are_passed_over(folder: Path) -> None:
    before = logits(folder)
    rewrite(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    assert torch.equal(logits(folder), before)


def test_old_and_new_rope_spelling_agree(folder: Path) -> None:
    edit(folder, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0})
    new = logits(folder)
    edit(folder, rope_parameters=None, rope_theta=300.0, rope_scaling={"type": "linear", "factor": 2.0})
    assert torch.equal(logits(folder), new)


def test_end_ids_come_from_both_configs(folder: Path) -> None:
    edit(folder, eos_token_id=[7, 2])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    assert read_spec(folder).eos == (7, 2, 9)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 4}))
    assert read_spec(folder).eos == (7, 2, 4)
    (folder / "generation_config.json").unlink()
    assert read_spec(folder).eos == (7, 2)


NAME = "model.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(NAME), f"no tensor {NAME}"),
        (lambda t: t.update({NAME: t[NAME][:-1]}), NAME),
        (lambda t: t.update({NAME: t[NAME].to(torch.int8)}), "quantised"),
        (lambda t: t.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(8)}), "self_attn.q_norm"),
        (lambda t: t.pop("lm_head.weight"), "lm_head"),
    ],
    ids=["missing", "shape", "dtype", "extra", "head"],
)
def test_a_damaged_checkpoint_names_the_tensor(folder: Path, change: Callable[[Any], Any], message: str) -> None:
    rewrite(folder, change)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_damaged_files_are_model_errors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors is missing"):
        load(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    with pytest.raises(ModelError, match=r"one\.safetensors is missing"):
        load(folder)
    index.write_text(json.dumps({"weight_map": {"a": "../one.safetensors"}}))
    with pytest.raises(ModelError, match="weight_map"):
        load(folder)
    for text in ("{", "[]"):
        (folder / "config.json").write_text(text)
        with pytest.raises(ModelError, match=r"config\.json"):
            read_spec(folder)
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        read_spec(folder / "nowhere")


@pytest.mark.parametrize(
    "architectures", [None, [], "LlamaForCausalLM", ["GPT2LMHeadModel"], ["Llama"], ["SpecForCausalLM"], [3]]
)
def test_unknown_architectures_are_named(folder: Path, architectures: Any) -> None:
    edit(folder, architectures=architectures)
    with pytest.raises(ModelError, match=r"architecture"):
        read_spec(folder)


def test_snake_case() -> None:
    assert [snake_case(x) for x in ("Llama", "Qwen2", "Qwen3Moe", "Mixtral")] == [
        "llama",
        "qwen2",
        "qwen3_moe",
        "mixtral",
    ]
