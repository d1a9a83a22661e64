"""Every architecture and config variant against transformers' logits, through the paged runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.checkpoints import tiny_checkpoint, tiny_model
from support.native import thread_pool
from support.paged import Paged
from tiergate.engine import LaneConfig
from tiergate.engine.config import Precision
from tiergate.engine.runners.cpu import open as open_cpu_runner
from tiergate.engine.runners.torch import TorchRunner
from tiergate.engine.runners.torch import open as open_runner


@dataclass(frozen=True)
class Variant:
    name: str
    arch: str
    config: dict[str, Any] = field(default_factory=dict)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 64}


def longrope(original: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 500.0,
        "factor": 4.0,
        "short_factor": [1.0, 1.2, 1.5, 2.0],
        "long_factor": [1.5, 2.0, 4.0, 6.0],
        "original_max_position_embeddings": original,
    }


VARIANTS = [
    Variant("plain", "llama"),
    Variant("tied", "llama", {"tie_word_embeddings": True}),
    Variant("biased", "llama", {"attention_bias": True, "mlp_bias": True}),
    Variant("wide-heads", "llama", {"head_dim": 24}),
    Variant("one-kv-head", "llama", {"num_key_value_heads": 1}),
    Variant("all-kv-heads", "llama", {"num_key_value_heads": 4}),
    Variant("linear", "llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}}),
    Variant("dynamic", "llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 500.0}}),
    Variant("llama3", "llama", {"rope_parameters": LLAMA3}),
    Variant("yarn", "llama", {"rope_parameters": YARN}),
    Variant("longrope-short", "llama", {"rope_parameters": longrope(256)}),
    Variant("longrope-long", "llama", {"rope_parameters": longrope(8)}),
    Variant("plain", "qwen2"),
    Variant("tied", "qwen2", {"tie_word_embeddings": True}),
    Variant("sliding-tail", "qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    Variant(
        "layer-types",
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 3,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    Variant("yarn", "qwen2", {"rope_parameters": YARN | {"attention_factor": 1.3, "truncate": False}}),
    Variant("plain", "qwen3"),
    Variant("tied-biased", "qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    Variant("sliding", "qwen3", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0}),
    Variant("yarn", "qwen3", {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.2}}),
    Variant("plain", "qwen3_moe"),
    Variant("raw-weights", "qwen3_moe", {"norm_topk_prob": False}),
    Variant("mixed-layers", "qwen3_moe", {"num_hidden_layers": 4, "mlp_only_layers": [1], "decoder_sparse_step": 2}),
    Variant("first-dense", "qwen3_moe", {"num_hidden_layers": 3, "mlp_only_layers": [0]}),
    Variant("sliding-biased", "qwen3_moe", {"use_sliding_window": True, "sliding_window": 5, "attention_bias": True}),
    Variant("plain", "mixtral"),
    Variant("tied", "mixtral", {"tie_word_embeddings": True}),
    Variant("sliding", "mixtral", {"sliding_window": 4}),
    Variant("one-expert", "mixtral", {"num_experts_per_tok": 1, "head_dim": 12}),
]
LENGTHS = {"a": 13, "b": 5, "c": 29, "d": 1}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda v: f"{v.arch}-{v.name}")
def variant(request: pytest.FixtureRequest) -> Variant:
    chosen: Variant = request.param
    return chosen


@pytest.fixture(scope="module")
def folder(variant: Variant, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp(variant.name), variant.arch, **variant.config)


@pytest.fixture(scope="module")
def tokens() -> dict[str, list[int]]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randint(0, 96, (size,), generator=generator).tolist() for name, size in LENGTHS.items()}


@pytest.fixture(scope="module")
def expected(variant: Variant, tokens: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    return reference(variant, tokens, torch.float32)


def reference(variant: Variant, tokens: dict[str, list[int]], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Transformers' own logits, computed in `dtype`."""
    model = tiny_model(variant.arch, **variant.config).to(dtype)
    # Transformers switches longrope's factors with the length at hand, a lane never does: so all are run at one length,
    # behind which no causal row can look.
    with torch.inference_mode():
        padded = {name: torch.tensor([ids + [0] * (max(LENGTHS.values()) - len(ids))]) for name, ids in tokens.items()}
        return {name: model(padded[name]).logits[0, : len(ids)] for name, ids in tokens.items()}


def opened(folder: Path, precision: Precision = "fp32", **config: Any) -> TorchRunner:
    lane = LaneConfig(name="lane", model=str(folder), precision=precision, block_size=4, blocks=40, **config)
    return open_runner(lane, "cpu")


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4)


def test_whole_prompts_in_one_ragged_batch(
    folder: Path, tokens: dict[str, list[int]], expected: dict[str, torch.Tensor]
) -> None:
    got = Paged(opened(folder)).step(tokens)
    for name in tokens:
        close(got[name], expected[name])


@pytest.mark.parametrize("size", [1, 3, 4, 7, 20])
def test_chunked_prefill(
    folder: Path, tokens: dict[str, list[int]], expected: dict[str, torch.Tensor], size: int
) -> None:
    paged, ids = Paged(opened(folder), seed=size), tokens["c"]
    rows = [paged.step({"c": ids[at : at + size]})["c"] for at in range(0, len(ids), size)]
    close(torch.cat(rows), expected["c"])


def test_decode_rows_beside_prefill_chunks(
    folder: Path, tokens: dict[str, list[int]], expected: dict[str, torch.Tensor]
) -> None:
    """Sequences of unequal lengths join one after another; each step mixes single rows, drafts and chunks."""
    paged = Paged(opened(folder), seed=3)
    chunks = {"a": [6, 1, 1, 1, 3, 1], "b": [0, 2, 1, 1, 1, 0], "c": [0, 0, 9, 1, 1, 18], "d": [0, 0, 0, 1, 0, 0]}
    done = dict.fromkeys(tokens, 0)
    for step in range(6):
        feed = {}
        for name, sizes in chunks.items():
            if sizes[step]:
                feed[name] = tokens[name][done[name] : done[name] + sizes[step]]
        for name, rows in paged.step(feed).items():
            close(rows, expected[name][done[name] : done[name] + len(rows)])
            done[name] += len(rows)
    assert done == LENGTHS


def test_last_rows_alone(folder: Path, tokens: dict[str, list[int]], expected: dict[str, torch.Tensor]) -> None:
    got = Paged(opened(folder)).step(tokens, last_only=True)
    for name in tokens:
        close(got[name], expected[name][-1:])


def test_bf16_is_as_near_as_transformers_bf16(
    variant: Variant, folder: Path, tokens: dict[str, list[int]], expected: dict[str, torch.Tensor]
) -> None:
    near(variant, tokens, expected, Paged(opened(folder, "bf16")).step(tokens))


def test_the_native_core_is_as_near(
    variant: Variant, folder: Path, tokens: dict[str, list[int]], expected: dict[str, torch.Tensor]
) -> None:
    lane = LaneConfig(name="lane", model=str(folder), precision="bf16", block_size=16, blocks=10)
    runner = open_cpu_runner(lane, thread_pool(1))
    paged = Paged(runner, seed=1)
    first = {name: ids[: len(ids) // 2] for name, ids in tokens.items() if len(ids) > 1}
    heads = paged.step(first)
    tails = paged.step({name: ids[len(first.get(name, ())) :] for name, ids in tokens.items()})
    got = {name: torch.cat((heads[name], tails[name])) if name in heads else tails[name] for name in tokens}
    near(variant, tokens, expected, got)


def near(
    variant: Variant, tokens: dict[str, list[int]], expected: dict[str, torch.Tensor], got: dict[str, torch.Tensor]
) -> None:
    have, want = torch.cat(list(got.values())), torch.cat(list(expected.values()))
    theirs = torch.cat(list(reference(variant, tokens, torch.bfloat16).values())).float()
    assert have.dtype == torch.float32
    cosine = torch.nn.functional.cosine_similarity(have.flatten(), want.flatten(), dim=0)
    assert cosine >= 0.999
    # The median, because rounding may turn the choice between two experts whose router weights are nearly equal.
    assert (have - want).abs().median() <= 1.25 * (theirs - want).abs().median()
