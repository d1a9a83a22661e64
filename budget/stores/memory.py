"""Books in this process's memory, gone with it: `memory:`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..books import Books
from ..errors import BadSetting
from ..store import Hold, Lease, Refused
from ..types import Balance


class MemoryStore:
    """All calls are done when they return to the event loop; nothing waits."""

    def __init__(self) -> None:
        self._books = Books()

    async def reserve(self, hold: Hold) -> Refused | None:
        return self._books.reserve(hold)

    async def settle(self, id: str, tokens: int) -> bool:
        return self._books.settle(id, tokens)

    async def renew(self, leases: Sequence[Lease]) -> None:
        self._books.renew(leases)

    async def expire(self, now: float) -> int:
        return self._books.expire(now)

    async def balance(self, tenant: str, window: str) -> Balance:
        return self._books.balance(tenant, window)

    async def check(self) -> None:
        self._books.check()

    async def close(self) -> None:
        return None


def open(place: str, folder: Path) -> MemoryStore:
    if place:
        raise BadSetting("budget.store", f"memory: takes nothing behind the colon, not {place!r}")
    return MemoryStore()
