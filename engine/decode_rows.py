"""Everyone who runs in a lane, each one token from closing its gap: what decoding works on, kept from step to step."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np

from .sequence import Sequence
from .step_buffers import Int32s


class DecodeRows:
    """Numbers of S sequences in order of service, so that a step needs to look at none of them by itself.

    Made by the `Scheduler` and good until it changes its mind about who runs.
    """

    def __init__(self, sequences: Rows[Sequence], block_size: int) -> None:
        self.sequences = tuple(sequences)
        self.rows: Int32s = np.array([s.row for s in sequences], np.int32)
        """[S] rows of the block tables."""
        self.lengths: Int32s = np.array([len(s.ids) for s in sequences], np.int32)
        """[S] tokens known of each."""
        self.context = int(self.lengths.sum())
        """Their sum."""
        self._block_size = block_size
        self._room: Int32s = np.array([len(s.blocks) for s in sequences], np.int32) * block_size
        self._calm_until: Int32s = np.array([s.calm_until for s in sequences], np.int32)
        self._least_room = int((self._room - self.lengths).min())
        self._least_calm = int((self._calm_until - self.lengths).min())

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def calm(self) -> int:
        """Tokens, 1 or more, that all may draw before one of them has to be accepted in full."""
        return self._least_calm

    def lacking(self, count: int) -> list[tuple[int, int]]:
        """(index, blocks) of those that have too few blocks for the keys and values of `count` tokens more."""
        if self._least_room >= count - 1:
            return []
        reach = self.lengths + (count - 1)
        short = np.flatnonzero(reach > self._room)
        blocks = (reach[short] - self._room[short] + (self._block_size - 1)) // self._block_size
        return list(zip(short.tolist(), blocks.tolist(), strict=True))

    def granted(self, grants: Rows[tuple[int, int]]) -> None:
        """What `lacking` named has been allocated."""
        for index, blocks in grants:
            self._room[index] += blocks * self._block_size
        if grants:
            self._least_room = int((self._room - self.lengths).min())

    def advance(self, count: int) -> None:
        """Each sequence has `count` tokens more."""
        self.lengths += count
        self.context += count * len(self.sequences)
        self._least_room -= count
        self._least_calm -= count

    def refresh(self, indices: Rows[int]) -> None:
        """These sequences have looked ahead again."""
        for index in indices:
            self._calm_until[index] = self.sequences[index].calm_until
        self._least_calm = int((self._calm_until - self.lengths).min())
