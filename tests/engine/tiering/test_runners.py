"""Runners give their blocks away and take them back to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fakes.checkpoints import tiny_checkpoint
from support.native import thread_pool
from support.paged import Paged
from tiergate.engine import LaneConfig
from tiergate.engine.runners.cpu import NativeRunner
from tiergate.engine.runners.cpu import open as open_native
from tiergate.engine.runners.torch import TorchRunner
from tiergate.engine.runners.torch import open as open_torch
from tiergate.engine.tiering.saved import BlockMemory

IDS = [3, 17, 80, 41, 5, 9, 22, 60] * 5


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("which", ["torch", "native", "native int8"])
def test_a_block_moved_elsewhere_is_the_same_block(which: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "qwen3")
    kv = "int8" if "int8" in which else "auto"
    config = LaneConfig(name="a", model=str(folder), block_size=16, blocks=8, kv_precision=kv)  # type: ignore[arg-type]
    runner: TorchRunner | NativeRunner
    runner = open_torch(config, "cpu") if which == "torch" else open_native(config, thread_pool(1))
    assert isinstance(runner, BlockMemory)
    here, there = Paged(runner), Paged(runner)
    here.step({"a": IDS[:-1]})
    blocks = here._blocks["a"]
    elsewhere = [block for block in range(8) if block not in blocks][: len(blocks)]
    saved = [runner.read_block(block) for block in blocks]
    assert {len(data) for data in saved} == {runner.kv_block_bytes}
    for block, data in zip(elsewhere, saved, strict=True):
        runner.write_block(block, data)
    there._blocks["a"], there._lengths["a"] = elsewhere, len(IDS) - 1
    want = here.step({"a": IDS[-1:]})["a"]
    assert torch.equal(there.step({"a": IDS[-1:]})["a"], want)
    assert runner.facts.weights
