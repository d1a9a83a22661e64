"""A step on a runner that gives logits: the batch as tensors, tokens drawn in Python."""

from __future__ import annotations

from collections.abc import Sequence as Rows

from .batch import Runner
from .build_batch import build_batch
from .sampler import Choice, Row, choose
from .scheduler import Work
from .step_buffers import Int32s

Choices = list[list[Choice]]
"""By work item, its `draws` in order."""


class TorchStep:
    def __init__(self, runner: Runner, tables: Int32s) -> None:
        self._runner = runner
        self._tables = tables

    def run(self, work: Rows[Work]) -> Choices:
        """Compute the work and choose tokens. No sequence changes: what fails may be run again, all of it or parts."""
        logits = self._runner.forward(build_batch(work, self._tables, self._runner.block_size))
        rows = [Row(item.sequence, ahead) for item in work for ahead in range(item.draws)]
        drawn = iter(choose(logits, rows) if rows else ())
        return [[next(drawn) for _ in range(item.draws)] for item in work]
