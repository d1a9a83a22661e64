"""Plays the scheduler's part for a runner: deals out blocks in random order and lays out the batches."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch

from tiergate.engine.batch import ForwardBatch, Runner


class Paged:
    """Sequences by name on one runner. `step` feeds each its next tokens and returns the logits of all rows."""

    def __init__(self, runner: Runner, seed: int = 0) -> None:
        self._runner = runner
        self._free = list(range(runner.blocks))
        random.Random(seed).shuffle(self._free)
        self._blocks: dict[str, list[int]] = {}
        self._lengths: dict[str, int] = {}

    def step(
        self,
        chunks: Mapping[str, Sequence[int]],
        *,
        experts: Mapping[str, int] | None = None,
        last_only: bool = False,
    ) -> dict[str, torch.Tensor]:
        """Logits float32 of the rows of each chunk, [tokens, vocab], or of its last row alone, [1, vocab]."""
        batch = self.batch(chunks, experts=experts, last_only=last_only)
        logits = self._runner.forward(batch).clone()
        rows = [1 if last_only else len(ids) for ids in chunks.values()]
        return dict(zip(chunks, logits.split(rows), strict=True))

    def batch(
        self,
        chunks: Mapping[str, Sequence[int]],
        *,
        experts: Mapping[str, int] | None = None,
        last_only: bool = False,
        wanted: bool = True,
    ) -> ForwardBatch:
        """The same as a batch, for a caller that runs it itself; without `wanted` no row asks for logits."""
        size = self._runner.block_size
        positions: list[int] = []
        slots: list[int] = []
        contexts: list[int] = []
        for name, ids in chunks.items():
            blocks, start = self._blocks.setdefault(name, []), self._lengths.get(name, 0)
            end = start + len(ids)
            while len(blocks) * size < end:
                blocks.append(self._free.pop())
            positions += range(start, end)
            slots += (blocks[at // size] * size + at % size for at in range(start, end))
            contexts.append(end)
            self._lengths[name] = end
        lens = [len(ids) for ids in chunks.values()]
        starts = [sum(lens[:at]) for at in range(len(lens) + 1)]
        rows = [end - 1 for end in starts[1:]] if last_only else list(range(starts[-1]))
        tables = [self._blocks[name] for name in chunks]
        width = max((len(table) for table in tables), default=0)
        return ForwardBatch(
            token_ids=torch.tensor([token for ids in chunks.values() for token in ids], dtype=torch.int64),
            positions=torch.tensor(positions, dtype=torch.int64),
            slots=torch.tensor(slots, dtype=torch.int64),
            query_starts=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor(contexts, dtype=torch.int32),
            block_tables=torch.tensor([t + [0] * (width - len(t)) for t in tables], dtype=torch.int32),
            logit_rows=torch.tensor(rows if wanted else [], dtype=torch.int64),
            query_lens=tuple(lens),
            context_lens=tuple(contexts),
            experts=None
            if experts is None
            else torch.tensor([experts[name] for name, ids in chunks.items() for _ in ids], dtype=torch.int32),
        )
