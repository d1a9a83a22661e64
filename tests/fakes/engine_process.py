"""Run as a script: an engine process whose lanes are fake models. A lane's `model` is JSON for `FakeModel`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent))

from fakes.model import FakeRunner
from tiergate.engine import LaneConfig, ModelError
from tiergate.engine.batch import ForwardBatch, Runner
from tiergate.engine.process import main


class FakeModel(msgspec.Struct, frozen=True, kw_only=True):
    step_seconds: float = 0.0
    """How long a forward pass takes."""
    broken: str = ""
    """Why it cannot be loaded."""
    blocks: int = 64
    context: int = 4096


def open_fake(config: LaneConfig, device: str) -> Runner:
    model = msgspec.json.decode(config.model, type=FakeModel)
    if model.broken:
        raise ModelError(model.broken)

    def wait(batch: ForwardBatch, logits: torch.Tensor) -> None:
        time.sleep(model.step_seconds)

    return FakeRunner(blocks=model.blocks, block_size=16, eos=(), context=model.context, fault=wait)


if __name__ == "__main__":
    sys.exit(main(open_fake))
