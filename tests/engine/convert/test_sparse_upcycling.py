"""The mixture computes what the dense model computes, whatever its router says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from fakes.checkpoints import tiny_checkpoint, tiny_model
from tiergate.engine import ModelError, inspect_model, upcycle

IDS = torch.tensor([[1, 7, 30, 12, 45, 39, 8, 8, 21, 60], [2, 90, 17, 3, 3, 3, 11, 64, 5, 70]])


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def dense(path: Path, **config: Any) -> Path:
    """A tiny bf16 Llama."""
    tiny_model("llama", **config).bfloat16().save_pretrained(path)
    return path


def logits(folder: Path, dtype: torch.dtype) -> torch.Tensor:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.inference_mode():
        result: torch.Tensor = loaded(IDS).logits.float()
    return result


@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (4, 1), (4, 2), (4, 4), (7, 3)])
@pytest.mark.parametrize("tied", [True, False])
def test_equal_to_the_dense_model(experts: int, top_k: int, tied: bool, tmp_path: Path) -> None:
    folder = dense(tmp_path / "dense", tie_word_embeddings=tied)
    upcycle(folder, tmp_path / "moe", experts=experts, top_k=top_k)
    torch.testing.assert_close(
        logits(tmp_path / "moe", torch.float32), logits(folder, torch.float32), rtol=1e-5, atol=1e-5
    )


def test_equal_in_bf16_up_to_the_rounding_of_sums(tmp_path: Path) -> None:
    folder = dense(tmp_path / "dense")
    upcycle(folder, tmp_path / "moe", experts=4, top_k=2)
    ours, theirs = logits(tmp_path / "moe", torch.bfloat16), logits(folder, torch.bfloat16)
    assert torch.nn.functional.cosine_similarity(ours, theirs, dim=-1).min() > 0.9999


def test_equal_under_any_router(tmp_path: Path) -> None:
    """The router is trained later; equality does not hang on its smallness."""
    folder = dense(tmp_path / "dense")
    upcycle(folder, tmp_path / "moe", experts=4, top_k=2)
    weights = load_file(tmp_path / "moe" / "model.safetensors")
    for name in weights:
        if name.endswith("gate.weight"):
            weights[name] = torch.randn_like(weights[name].float()).bfloat16()
    save_file(weights, tmp_path / "moe" / "model.safetensors", metadata={"format": "pt"})
    torch.testing.assert_close(
        logits(tmp_path / "moe", torch.float32), logits(folder, torch.float32), rtol=1e-5, atol=1e-5
    )


def test_routers_are_small_seeded_and_tell_tokens_apart(tmp_path: Path) -> None:
    folder = dense(tmp_path / "dense")
    for name, seed in {"a": 0, "b": 0, "c": 1}.items():
        upcycle(folder, tmp_path / name, experts=4, top_k=2, seed=seed)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a", dtype=torch.float32)
    with torch.inference_mode():
        routed = torch.cat(loaded(IDS, output_router_logits=True).router_logits)
    assert routed.abs().max() < 1e-3
    assert len(routed.topk(2).indices.unique(dim=0)) > 2


def test_a_standard_mixtral_with_the_dense_models_other_files(tmp_path: Path) -> None:
    folder = dense(tmp_path / "dense")
    (folder / "chat_template.jinja").write_text("hi")
    (folder / "quant.safetensors").write_text("of the dense model alone")
    upcycle(folder, tmp_path / "moe", experts=4, top_k=2)
    summary = inspect_model(tmp_path / "moe")
    assert (summary.architecture, summary.experts, summary.experts_per_token) == ("mixtral", 4, 2)
    assert summary.dtype == "BF16"
    names = {path.name for path in (tmp_path / "moe").iterdir()}
    assert names == {"config.json", "model.safetensors", "chat_template.jinja", "generation_config.json"}
    before, after = (transformers.AutoConfig.from_pretrained(f).to_dict() for f in (folder, tmp_path / "moe"))
    for key in ("hidden_size", "rope_parameters", "head_dim", "eos_token_id", "tie_word_embeddings", "rms_norm_eps"):
        assert before[key] == after[key], key


@pytest.mark.parametrize(("experts", "top_k"), [(4, 0), (4, 5), (0, 0)])
def test_impossible_numbers(experts: int, top_k: int, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="top_k"):
        upcycle(dense(tmp_path / "dense"), tmp_path / "moe", experts=experts, top_k=top_k)


def test_only_a_bf16_llama_without_biases(tmp_path: Path) -> None:
    for name, folder in {
        "qwen3": tiny_checkpoint(tmp_path / "qwen3", "qwen3"),
        "biased": dense(tmp_path / "biased", mlp_bias=True),
    }.items():
        with pytest.raises(ModelError, match="only a Llama without biases"):
            upcycle(folder, tmp_path / f"{name}-moe", experts=4, top_k=2)
    with pytest.raises(ModelError, match="bf16"):
        upcycle(tiny_checkpoint(tmp_path / "fp32"), tmp_path / "moe", experts=4, top_k=2)
    with pytest.raises(ModelError, match=r"config\.json"):
        upcycle(tmp_path / "absent", tmp_path / "moe", experts=4, top_k=2)
    assert not (tmp_path / "moe").exists()
