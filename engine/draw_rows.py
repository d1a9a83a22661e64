"""Keeps what each row of a lane's block tables draws with, in the form that a native step reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .sampler import bans_of, edits_of, nudge_of
from .sequence import Sequence
from .step_buffers import SAMPLING, Int32s, Records

_MOST = (1 << 31) - 1
_SEEDS = (1 << 64) - 1


class DrawRows:
    """Written anew only for sequences that are stale: one decodes many tokens with the same parameters."""

    def __init__(self, rows: int) -> None:
        self.records: Records = np.zeros(rows, SAMPLING)
        """`SAMPLING` [rows]; `position` is left to whoever makes a step of them."""
        self._bans: list[Int32s] = [np.empty(0, np.int32)] * rows
        self._nudged: list[tuple[npt.NDArray[Any], ...]] = [()] * rows
        """What records point to that no sequence keeps."""

    def update(self, sequence: Sequence) -> None:
        """Write down what a running sequence draws with. Begins the cut of a thought that has reached its limit."""
        if not sequence.stale:
            return
        params = sequence.sampling
        forced = None if params.logprobs is None else sequence.next_forced()
        count, ids, scales, adds = self._edits(sequence)
        bans = bans_of(sequence)
        if bans:
            self._bans[sequence.row] = np.array(bans, np.int32)
        self.records[sequence.row] = (
            min(params.temperature, 1e6),
            params.top_p,
            params.min_p,
            min(params.top_k, _MOST),
            sequence.seed & _SEEDS,
            0,
            count,
            len(bans),
            ids,
            scales,
            adds,
            self._bans[sequence.row].ctypes.data if bans else 0,
            -1 if params.logprobs is None else params.logprobs,
            -1 if forced is None else forced,
        )
        sequence.stale = False

    def _edits(self, sequence: Sequence) -> tuple[int, int, int, int]:
        """How many logits change, and the addresses of ids, scales and adds."""
        edits = sequence.edits
        if nudge_of(sequence) is None:
            if edits is None:
                return 0, 0, 0, 0
            ids, scales, adds = edits.addresses
            return len(edits), ids, scales, adds
        changed = edits_of(sequence)
        assert changed is not None
        kept = self._nudged[sequence.row] = tuple(np.ascontiguousarray(array) for array in changed)
        ids, scales, adds = (array.ctypes.data for array in kept)
        return len(kept[0]), ids, scales, adds
