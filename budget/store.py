"""The seam between the ledger and wherever the books lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .types import Balance


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of time whose spending is counted together."""

    name: str
    """As people call it: `day`."""
    key: str
    """Names this very stretch in the books, as `day:2026-11-30`; no spaces."""
    limit: int | None
    """Most tokens reserved and spent in it; None only counts."""
    ends: float
    """Unix time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A reservation to be made in all of its windows, or in none."""

    id: str
    """Of the grant; never used before."""
    tenant: str
    windows: tuple[Window, ...]
    """One or more."""
    tokens: int
    """To be reserved, >= 0."""
    measured: int
    """What its settlement will be if nothing more is ever heard of it, >= 0."""
    expires: float
    """Unix time at which its lease ends."""


@dataclass(frozen=True, slots=True)
class Lease:
    """News of an open grant: tokens measured so far, and when its lease ends now (unix time)."""

    id: str
    measured: int
    expires: float
    tokens: int | None = None
    """What it needs reserved from now on, where that is less than before; it is not measured beyond that."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The first window that has no room, and its state; nothing was reserved."""

    window: Window
    reserved: int
    spent: int


class Store(Protocol):
    """Keeps the books of all tenants, for one process or several. Amounts are tokens.

    Every change is atomic. Changes asked for by one ledger are made in the order of the calls, and a change whose
    caller stops waiting is made all the same: whoever cancels a `reserve` must `settle` it. Every method but `close`
    raises `StoreUnavailable` when the books cannot be reached; the change was not made then.
    """

    async def reserve(self, hold: Hold) -> Refused | None:
        """Reserve in every window unless one of them would pass its limit.

        A hold without any limit cannot be refused, so a store may return before it is on the books, provided that it
        gets there before everything asked for later.
        """
        ...

    async def settle(self, id: str, tokens: int) -> bool:
        """Turn an open grant's reservation into `tokens` spent, in the windows it was made in.

        True only for the call that did it. A grant that `expire` settled is corrected to `tokens`, once.
        """
        ...

    async def renew(self, leases: Sequence[Lease]) -> None:
        """Extend leases, and give back what a lease does not need any more.

        Measures and ends only grow, reservations only shrink; unknown and settled grants are passed over.
        """

    async def expire(self, now: float) -> int:
        """Settle open grants whose lease has ended, at what was measured, and return how many they were."""
        ...

    async def balance(self, tenant: str, window: str) -> Balance:
        """The books of one window by its key; zeros where nothing was ever reserved."""
        ...

    async def check(self) -> None:
        """Verify all books: nothing negative, granted = settled + open, reserved = the sum over open grants.

        Raises `AssertionError`.
        """

    async def close(self) -> None:
        """Write what is left to write and let go of everything. The store is not used after."""
