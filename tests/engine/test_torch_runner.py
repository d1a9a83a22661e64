"""The torch runner: how it is sized, and that sequences stay strangers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.checkpoints import tiny_checkpoint, tiny_model
from support.paged import Paged
from tiergate.engine import LaneConfig, ModelError
from tiergate.engine.runners.torch import TorchRunner, place
from tiergate.engine.runners.torch import open as open_runner


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("llama"))


def opened(folder: Path, **config: Any) -> TorchRunner:
    return open_runner(LaneConfig(name="lane", model=str(folder), **config), "cpu")


def test_blocks_come_from_the_memory_given(folder: Path) -> None:
    # 2 layers, 2 key heads of 8 dimensions, keys and values: 64 numbers a token.
    runner = opened(folder, kv_bytes=10_000, block_size=4)
    assert runner.facts.kv_bytes_per_token == 128
    assert runner.blocks == 10_000 // (128 * 4)
    assert runner.block_size == 4
    assert runner.facts.context == runner.blocks * 4
    assert opened(folder, kv_bytes=10_000, block_size=4, precision="fp32").blocks == 10_000 // (256 * 4)
    assert opened(folder, blocks=7, kv_bytes=1).blocks == 7
    with pytest.raises(ModelError, match="100 bytes"):
        opened(folder, kv_bytes=100)


def test_facts(folder: Path, tmp_path: Path) -> None:
    facts = opened(folder, blocks=100).facts
    assert (facts.vocab, facts.context, facts.eos) == (96, 256, (2,))
    assert (facts.experts, facts.experts_per_token) == (0, 0)
    assert opened(folder, blocks=100, context=50).facts.context == 50
    sparse = opened(tiny_checkpoint(tmp_path, "mixtral"), blocks=4).facts
    assert (sparse.experts, sparse.experts_per_token) == (4, 2)


def test_a_context_beyond_the_models_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="257"):
        opened(folder, blocks=100, context=257)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 500.0}
    dynamic = tiny_checkpoint(tmp_path, rope_parameters=rope, max_position_embeddings=16)
    assert opened(dynamic, blocks=100).facts.context == 16
    with pytest.raises(ModelError, match="33"):
        opened(dynamic, blocks=100, context=33)
    ids = torch.randint(0, 96, (32,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        want = tiny_model(rope_parameters=rope, max_position_embeddings=16)(ids[None]).logits[0]
    paged = Paged(opened(dynamic, blocks=100, context=32, precision="fp32"))
    rows = [paged.step({"a": ids[at : at + 8].tolist()})["a"] for at in range(0, 32, 8)]
    torch.testing.assert_close(torch.cat(rows), want, rtol=0, atol=1e-4)


def test_more_rows_than_the_buffer_holds(folder: Path) -> None:
    few, many = (Paged(opened(folder, blocks=20, max_sequences=rows)) for rows in (2, 64))
    ids = list(range(1, 20))
    assert torch.equal(few.step({"a": ids})["a"], many.step({"a": ids})["a"])


def test_a_step_may_want_no_logits(folder: Path, tmp_path: Path) -> None:
    """A prefill chunk that ends before its prompt does."""
    for path in (folder, tiny_checkpoint(tmp_path, "qwen3_moe")):
        runner = opened(path, blocks=20, block_size=4, precision="fp32")
        whole, parts = Paged(runner, seed=1), Paged(runner, seed=2)
        ids = [5, 6, 7, 8, 9, 10, 11]
        want = whole.step({"a": ids}, last_only=True)["a"]
        batch = parts.batch({"b": ids[:5]}, wanted=False)
        assert runner.forward(batch).shape == (0, 96)
        torch.testing.assert_close(parts.step({"b": ids[5:]}, last_only=True)["b"], want, rtol=0, atol=1e-4)


def test_a_broken_sequence_breaks_no_other(folder: Path) -> None:
    """Blocks that a sequence left full of NaN serve the next owner as if they were new."""
    runner = opened(folder, blocks=6, block_size=4, precision="fp32")
    ids = [5, 6, 7, 8, 9, 10]
    want = Paged(runner, seed=3).step({"a": ids, "b": ids[:2]})
    with torch.inference_mode():
        for layer in runner._cache.layers:
            layer.fill_(torch.nan)
    got = Paged(runner, seed=3).step({"a": ids, "b": ids[:2]})
    assert all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize("arch", ["qwen3_moe", "mixtral"])
def test_experts_are_counted_for_each_sequence(arch: str, tmp_path: Path) -> None:
    runner = opened(tiny_checkpoint(tmp_path, arch), blocks=60, block_size=4, precision="fp32")
    top = runner.facts.experts_per_token
    prompts = {"a": [4, 8, 15, 16, 23, 42], "b": [7, 7, 7], "c": [1, 2, 3, 4]}
    counts = {"a": 1, "b": top, "c": 1}
    mixed = Paged(runner, seed=1).step(prompts, experts=counts)
    free = Paged(runner, seed=2).step(prompts)
    for name, ids in prompts.items():
        solo = Paged(runner, seed=3).step({name: ids}, experts=counts)
        torch.testing.assert_close(mixed[name], solo[name], rtol=0, atol=1e-5)
    assert (mixed["a"] - free["a"]).abs().max() > 0.01
    torch.testing.assert_close(mixed["b"], free["b"], rtol=0, atol=1e-5)
    full = Paged(runner, seed=2).step(prompts, experts=dict.fromkeys(prompts, top))
    assert all(torch.equal(full[name], free[name]) for name in prompts)


def test_a_batch_is_moved_whole(folder: Path) -> None:
    batch = Paged(opened(folder, blocks=4)).batch({"a": [1, 2, 3]}, experts={"a": 1})
    assert place(batch, torch.device("cpu")) is batch
    moved = place(batch, torch.device("meta"))
    tensors = [value for name in batch.__slots__ if isinstance(value := getattr(moved, name), torch.Tensor)]
    assert len(tensors) == 8
    assert all(tensor.is_meta for tensor in tensors)
    assert (moved.query_lens, moved.context_lens) == (batch.query_lens, batch.context_lens)
