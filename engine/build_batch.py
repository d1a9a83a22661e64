"""Lays a step's work out as the tensors of a `ForwardBatch`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from .batch import ForwardBatch
from .scheduler import Work


def build_batch(work: Sequence[Work], tables: npt.NDArray[np.int32], block_size: int) -> ForwardBatch:
    """`tables` int32 [rows, width] holds the block ids of running sequences. Tensors are on the CPU.

    `logit_rows` has the last `draws` rows of each chunk.
    """
    starts = np.array([item.start for item in work], np.int64)
    counts = np.array([item.length for item in work], np.int64)
    rows = np.array([item.sequence.row for item in work], np.int64)
    lengths = starts + counts
    ends = np.cumsum(counts)
    context_lens = lengths.tolist()
    total = int(ends[-1])
    token_ids = np.frombuffer(join_tokens(work), np.int64)
    positions = np.arange(total) + np.repeat(lengths - ends, counts)
    owners = np.repeat(rows, counts)
    width = -(-max(context_lens) // block_size)
    slots = tables[owners, positions // block_size].astype(np.int64) * block_size + positions % block_size
    return ForwardBatch(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        query_starts=torch.from_numpy(np.concatenate(([0], ends)).astype(np.int32)),
        seq_lens=torch.from_numpy(lengths.astype(np.int32)),
        block_tables=torch.from_numpy(tables[rows, :width]),
        logit_rows=torch.from_numpy(find_logit_rows(work, ends)),
        query_lens=tuple(counts.tolist()),
        context_lens=tuple(context_lens),
    )


def join_tokens(work: Sequence[Work]) -> array[int]:
    """The tokens of all chunks, drafts included, typecode `q`."""
    joined = array("q")
    for sequence, start, length in work:
        joined += sequence.ids[start : start + length]
        drafted = start + length - len(sequence.ids)
        if drafted > 0:
            joined.extend(sequence.drafts[:drafted])
    return joined


def find_logit_rows(work: Sequence[Work], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64 [R], ascending: of each chunk that ends before row `ends[i]`, the last `draws` rows."""
    draws = np.array([item.draws for item in work], np.int64)
    total = int(draws.sum())
    return np.arange(total) + np.repeat(ends - np.cumsum(draws), draws)
