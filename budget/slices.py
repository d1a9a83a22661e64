"""Grants out of slices: a store is asked for the tokens of many grants at once, and grants are then made in memory.

A slice is a hold like any other to the store, and measured in full: it is charged before anything of it is spent. So
however a process ends, no tenant can spend what is not on the books; one that dies has its slices charged whole, and
one that ends in order, or has no use for a slice any more, gives back what it did not spend.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from .errors import StoreUnavailable
from .store import Hold, Lease, Refused, Store
from .types import Balance

GRANTS: Final = 64
"""Grants, of the size of the one that needs it, that a slice is to hold; and as a share of a limit, the most it takes
is one part of as many."""

log = logging.getLogger(__name__)

Key = tuple[str, tuple[str, ...]]
"""Tenant, and keys of windows."""


@dataclass(slots=True, eq=False)
class _Slice:
    id: str
    key: Key
    tokens: int
    """What it is to hold on the books."""
    left: int
    """Tokens that can still be granted."""
    spent: int = 0
    settled: int = 0
    """Grants made and settled."""
    open: dict[str, int] = field(default_factory=dict)
    """Tokens of open grants."""
    measured: dict[str, int] = field(default_factory=dict)
    """What open grants are known to have spent."""
    used: bool = True
    """Since the last renewal."""

    def trim(self) -> Lease:
        """Let go of what has not been granted; the lease tells the store so."""
        rest = max(self.left, 0)  # grants may have spent more than they had
        self.tokens -= rest
        self.left -= rest
        return Lease(self.id, 0, 0.0, self.tokens)


class Slices:
    """A `Store` in front of another one, of one process and event loop.

    Holds that are large in proportion to a limit go to the store behind, and whatever is refused there is tried again
    once all slices have given back what they do not need. So one process grants a limit to the last token, and each
    other one keeps from it at most the rest of its latest slice, and for a lease's renewal what its grants did not use.

    Balances are exact for this process's own grants; those of other processes show as the slices that they come from,
    and a slice that was given back has been one grant.
    """

    def __init__(self, store: Store) -> None:
        """Owns `store` from here on."""
        self._store = store
        self._name = f"{uuid.uuid4().hex}-slice"
        self._ids = itertools.count(1)
        self._current: dict[Key, _Slice] = {}
        self._retired: set[_Slice] = set()
        """Still on the books, no grants are made from them."""
        self._grants: dict[str, _Slice] = {}
        self._asking: dict[Key, asyncio.Task[bool]] = {}
        self._paying: set[asyncio.Task[None]] = set()
        self._returns = 0
        """Times that tokens were given back for a hold that had been refused."""

    async def reserve(self, hold: Hold) -> Refused | None:
        key = (hold.tenant, tuple([window.key for window in hold.windows]))
        while True:
            slice = self._current.get(key)
            if slice is not None and slice.left >= hold.tokens:
                slice.left -= hold.tokens
                slice.used = True
                slice.open[hold.id] = hold.tokens
                slice.measured[hold.id] = hold.measured
                self._grants[hold.id] = slice
                return None
            size = _size(hold)
            if not size or not await self._ask(key, replace(hold, tokens=size, measured=size)):
                break
        returns = self._returns
        refused = await self._store.reserve(hold)
        if refused is not None and (await self._give_back(key) or self._returns > returns):
            refused = await self._store.reserve(hold)
        return refused

    async def settle(self, id: str, tokens: int) -> bool:
        slice = self._grants.pop(id, None)
        if slice is None:
            return await self._store.settle(id, tokens)
        slice.left += slice.open.pop(id) - tokens
        del slice.measured[id]
        slice.spent += tokens
        slice.settled += 1
        if not slice.open and slice in self._retired:
            self._pay_soon(slice)
        return True

    async def renew(self, leases: Sequence[Lease]) -> None:
        expires = max((lease.expires for lease in leases), default=0.0)
        own = []
        for lease in leases:
            slice = self._grants.get(lease.id)
            if slice is None:
                own.append(lease)
            else:
                slice.measured[lease.id] = max(slice.measured[lease.id], lease.measured)
        for key, slice in list(self._current.items()):
            # Without leases nothing here is open, and nobody says for how long to renew.
            if not slice.open and not (slice.used and leases):
                self._retire(key)
            slice.used = False
        for slice in list(self._retired):
            if slice.open:
                slice.trim()
            else:
                await self._pay(slice)
        kept = (*self._current.values(), *self._retired) if leases else ()
        own += [Lease(slice.id, slice.tokens, expires, slice.tokens) for slice in kept]
        await self._store.renew(own)

    async def expire(self, now: float) -> int:
        return await self._store.expire(now)

    async def balance(self, tenant: str, window: str) -> Balance:
        # Counted before the store is asked, whose answer is as of now too.
        reserved = spent = opened = settled = 0
        for slice in (*self._current.values(), *self._retired):
            if slice.key[0] == tenant and window in slice.key[1]:
                reserved += sum(slice.open.values()) - slice.tokens
                spent += slice.spent
                opened += len(slice.open) - 1
                settled += slice.settled
        balance = await self._store.balance(tenant, window)
        return replace(
            balance,
            reserved=balance.reserved + reserved,
            spent=balance.spent + spent,
            open_grants=balance.open_grants + opened,
            settled_grants=balance.settled_grants + settled,
            granted=balance.granted + opened + settled,
        )

    async def check(self) -> None:
        for slice in (*self._current.values(), *self._retired):
            opened = sum(slice.open.values())
            assert slice.left + opened + slice.spent == slice.tokens, f"{slice.id}: {slice}"
            assert slice.open.keys() == slice.measured.keys(), f"{slice.id}: {slice}"
        await self._store.check()

    async def close(self) -> None:
        if self._asking:
            await asyncio.wait(self._asking.values())
        for key in list(self._current):
            self._retire(key)
        if self._paying:
            await asyncio.wait(self._paying)
        for slice in list(self._retired):
            await self._pay(slice)
        await self._store.close()

    async def _ask(self, key: Key, hold: Hold) -> bool:
        """Get a new slice, for whoever waits for one; false when there is not room for one."""
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(self._take(key, hold))
            asking.add_done_callback(lambda task: self._asked(key, task))
        # Whoever leaves meanwhile must not take it away from those who stay.
        return await asyncio.shield(asking)

    def _asked(self, key: Key, task: asyncio.Task[bool]) -> None:
        del self._asking[key]
        task.exception()  # all who wait may have left, and then nobody else looks at it

    async def _take(self, key: Key, hold: Hold) -> bool:
        id = f"{self._name}-{next(self._ids)}"
        if await self._store.reserve(replace(hold, id=id)) is not None:
            return False
        self._retire(key)
        self._current[key] = _Slice(id, key, hold.tokens, hold.tokens)
        return True

    async def _give_back(self, key: Key) -> bool:
        """Return what no grant of these windows needs, because one wants it; false where there is nothing."""
        idle = self._current.get(key)
        if idle is not None and not idle.open:
            self._retired.add(self._current.pop(key))
        slices = [slice for slice in (*self._current.values(), *self._retired) if slice.key == key]
        trimmed = [slice.trim() for slice in slices if slice.open and slice.left > 0]
        whole = [slice for slice in slices if not slice.open]
        if not (trimmed or whole):
            return False
        self._returns += 1
        await asyncio.gather(self._store.renew(trimmed), *(self._pay(slice) for slice in whole))
        return True

    def _retire(self, key: Key) -> None:
        slice = self._current.pop(key, None)
        if slice is not None:
            self._retired.add(slice)
            self._pay_soon(slice)

    def _pay_soon(self, slice: _Slice) -> None:
        task = asyncio.create_task(self._trim(slice) if slice.open else self._pay(slice))
        self._paying.add(task)
        task.add_done_callback(self._paying.discard)

    async def _trim(self, slice: _Slice) -> None:
        try:
            await self._store.renew([slice.trim()])
        except StoreUnavailable as error:
            log.warning("the rest of a slice is given back later: %s", error)

    async def _pay(self, slice: _Slice) -> None:
        """Settle a retired slice; one that the store does not take now stays for the next renewal.

        Open grants, which only `close` leaves behind, are settled at their measure.
        """
        if slice not in self._retired:
            return
        self._retired.discard(slice)
        try:
            await self._store.settle(slice.id, slice.spent + sum(slice.measured.values()))
        except StoreUnavailable as error:
            log.warning("a slice of %d tokens is kept for later: %s", slice.tokens, error)
            self._retired.add(slice)
        else:
            for id in slice.open:
                self._grants.pop(id, None)


def _size(hold: Hold) -> int:
    """Tokens of a slice for grants like this one; 0 where it would hold fewer than two, or take too much of a limit."""
    shares = [window.limit // GRANTS for window in hold.windows if window.limit is not None]
    size = min([hold.tokens * GRANTS, *shares])
    return size if size >= 2 * hold.tokens > 0 else 0
