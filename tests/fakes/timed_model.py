"""A model that computes nothing but takes its time: each step moves a clock by what a step of its shape would cost."""

from __future__ import annotations

import select
from collections.abc import Callable

import numpy as np
import torch

from support.cores import Clock
from tiergate.engine.batch import ForwardBatch, ModelFacts
from tiergate.engine.latency import Shape, with_chunk
from tiergate.engine.step_buffers import StepBuffers


class TimedRunner:
    """A `StepRunner` that draws token 1 for every row. `shapes` records the steps, `calls` the steps of each call."""

    def __init__(self, clock: Clock, cost: Callable[[Shape], float], *, blocks: int = 4096) -> None:
        self.facts = ModelFacts(vocab=64, context=1 << 16, eos=(0,), kv_bytes_per_token=23_040)
        self.blocks, self.block_size = blocks, 16
        self.shapes: list[Shape] = []
        self.calls: list[int] = []
        self._clock = clock
        self._cost = cost

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        raise NotImplementedError("this runner draws its tokens itself")

    def bind(self, buffers: StepBuffers) -> TimedStep:
        return TimedStep(self, buffers)

    def spend(self, shape: Shape) -> None:
        self.shapes.append(shape)
        self._clock.now += self._cost(shape)


class TimedStep:
    def __init__(self, runner: TimedRunner, buffers: StepBuffers) -> None:
        self._runner = runner
        self._buffers = buffers

    def __call__(self, *, tokens: int, sequences: int, rows: int, repeat: int, wake: int) -> int:
        lengths = np.diff(self._buffers.query_starts[: sequences + 1]).tolist()
        ends = self._buffers.seq_lens[:sequences].tolist()
        for done in range(1, repeat + 1):
            shape = Shape(0)
            for length, end in zip(lengths, ends, strict=True):
                shape = with_chunk(shape, end + done - 1 - length, length)
            self._runner.spend(shape)
            self._buffers.chosen["token"][(done - 1) * rows : done * rows] = 1
            if wake >= 0 and select.select([wake], [], [], 0)[0]:
                break
        self._runner.calls.append(done)
        return done
