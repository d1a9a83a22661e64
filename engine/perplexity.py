"""How well a runner's model predicts a text: the measure by which precisions are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .batch import ForwardBatch, Runner

CHUNK = 128
"""Tokens of a step: their logits, of the whole vocabulary each, must fit beside the model."""


@dataclass(frozen=True, slots=True)
class TextLoss:
    """What a text cost a model."""

    tokens: int
    """Predicted; the first of each window is not."""
    nats: float
    """The sum of -log p over them."""

    @property
    def perplexity(self) -> float:
        """exp of the mean loss; infinite where a prediction had no probability or was no number."""
        mean = self.nats / max(1, self.tokens)
        return math.exp(mean) if math.isfinite(mean) and mean < 700 else math.inf


def text_loss(runner: Runner, ids: Sequence[int], window: int) -> TextLoss:
    """The loss of `ids` in windows of so many tokens, each predicted from those before it in its window.

    The runner's cache must be nobody else's: blocks are used from the first on. A rest of less than two tokens is left
    out. Raises ValueError for a window that the cache cannot hold.
    """
    if not 2 <= window <= runner.blocks * runner.block_size:
        raise ValueError(f"windows of {window} tokens, and a cache of {runner.blocks * runner.block_size}")
    tokens, nats = 0, 0.0
    for start in range(0, len(ids) - 1, window):
        part = torch.tensor(ids[start : start + window], dtype=torch.int64)
        tokens += len(part) - 1
        for at in range(0, len(part), CHUNK):
            chunk = part[at : at + CHUNK]
            logits = runner.forward(_batch(runner, chunk, at))
            wanted = part[at + 1 : at + 1 + len(chunk)]
            nats += float(torch.nn.functional.cross_entropy(logits[: len(wanted)], wanted, reduction="sum"))
    return TextLoss(tokens, nats)


def decode_batch(runner: Runner) -> ForwardBatch:
    """A token behind none."""
    return _batch(runner, torch.zeros(1, dtype=torch.int64), 0)


def _batch(runner: Runner, chunk: torch.Tensor, start: int) -> ForwardBatch:
    """`chunk` as tokens `start` and up of the only sequence, whose blocks are the first ones."""
    count, size = len(chunk), runner.block_size
    places = torch.arange(start, start + count)
    return ForwardBatch(
        token_ids=chunk,
        positions=places,
        slots=places,
        query_starts=torch.tensor([0, count], dtype=torch.int32),
        seq_lens=torch.tensor([start + count], dtype=torch.int32),
        block_tables=torch.arange(-(-(start + count) // size), dtype=torch.int32)[None],
        logit_rows=torch.arange(count),
        query_lens=(count,),
        context_lens=(start + count,),
    )
