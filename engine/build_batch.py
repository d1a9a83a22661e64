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

    `logit_rows` has the last row of each chunk that closes its sequence's gap.
    """
    starts = np.array([item.start for item in work], np.int64)
    counts = np.array([item.length for item in work], np.int64)
    rows = np.array([item.sequence.row for item in work], np.int64)
    lengths = starts + counts
    ends = np.cumsum(counts)
    context_lens = lengths.tolist()
    total = int(ends[-1])
    if total == len(work):
        token_ids = np.array([item.sequence.ids[item.start] for item in work], np.int64)
        positions, owners = starts, rows
    else:
        joined = array("q")
        for item in work:
            joined += item.sequence.ids[item.start : item.start + item.length]
        token_ids = np.frombuffer(joined, np.int64)
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
        logit_rows=torch.from_numpy(ends[[item.wants_logits for item in work]] - 1),
        query_lens=tuple(counts.tolist()),
        context_lens=tuple(context_lens),
    )
