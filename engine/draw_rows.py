"""Keeps what each row of a lane's block tables draws with, in the form that a native step reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .sampler import bans_of, edits_of
from .sequence import Sequence
from .step_buffers import SAMPLING, Records

_MOST = (1 << 31) - 1
_SEEDS = (1 << 64) - 1


class DrawRows:
    """Written anew only for sequences that are stale: one decodes many tokens with the same parameters."""

    def __init__(self, rows: int) -> None:
        self.records: Records = np.zeros(rows, SAMPLING)
        """`SAMPLING` [rows]; `position` is left to whoever makes a step of them."""
        self._kept: list[tuple[npt.NDArray[Any], ...]] = [()] * rows
        """The arrays that the records point to."""

    def update(self, sequence: Sequence) -> None:
        """Write down what a running sequence draws with. Begins the cut of a thought that has reached its limit."""
        if not sequence.stale:
            return
        params = sequence.sampling
        forced = None if params.logprobs is None else sequence.next_forced()
        edits, bans = edits_of(sequence), bans_of(sequence)
        kept: list[npt.NDArray[Any]] = []
        addresses = [0, 0, 0]
        if edits is not None:
            ids, scales, adds = edits
            kept = [ids.astype(np.int32), np.ascontiguousarray(scales), np.ascontiguousarray(adds)]
            addresses = [array.ctypes.data for array in kept]
        if bans:
            kept.append(np.array(bans, np.int32))
        self.records[sequence.row] = (
            min(params.temperature, 1e6),
            params.top_p,
            params.min_p,
            min(params.top_k, _MOST),
            sequence.seed & _SEEDS,
            0,
            0 if edits is None else len(kept[0]),
            len(bans),
            *addresses,
            kept[-1].ctypes.data if bans else 0,
            -1 if params.logprobs is None else params.logprobs,
            -1 if forced is None else forced,
        )
        self._kept[sequence.row] = tuple(kept)
        sequence.stale = False
