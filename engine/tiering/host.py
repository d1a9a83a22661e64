"""Blocks in host memory, within a budget; least recently used ones make room."""

from __future__ import annotations

from collections import OrderedDict

from .saved import Saved


class HostShelf:
    """Owned by `KvTiers`."""

    def __init__(self, budget: int) -> None:
        """`budget` in bytes of keys and values."""
        self._budget = budget
        self._blocks: OrderedDict[bytes, Saved] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks

    def put(self, key: bytes, saved: Saved) -> list[tuple[bytes, Saved]]:
        """Keep a block as the latest used; those that had to go for it (itself, if it is too large)."""
        self.take(key)
        self._blocks[key] = saved
        self.bytes += len(saved.data)
        gone = []
        while self.bytes > self._budget:
            old, lost = self._blocks.popitem(last=False)
            self.bytes -= len(lost.data)
            gone.append((old, lost))
        return gone

    def take(self, key: bytes) -> Saved | None:
        """Give a block away, None if it is not here."""
        saved = self._blocks.pop(key, None)
        if saved is not None:
            self.bytes -= len(saved.data)
        return saved

    def empty(self) -> list[tuple[bytes, Saved]]:
        """Give all away, least recently used first."""
        all_of_them = list(self._blocks.items())
        self._blocks.clear()
        self.bytes = 0
        return all_of_them
