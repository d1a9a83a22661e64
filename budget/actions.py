"""What can be asked of the books, as values, so that a store can carry out many in one transaction."""

from __future__ import annotations

from dataclasses import dataclass

from .books import Books
from .store import Hold, Lease, Refused
from .types import Balance


@dataclass(frozen=True, slots=True)
class Settle:
    """Answered by whether this did it."""

    id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Renew:
    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class Expire:
    """Answered by the number of grants settled. `now` is unix time."""

    now: float


@dataclass(frozen=True, slots=True)
class Look:
    """Answered by the `Balance`."""

    tenant: str
    window: str


@dataclass(frozen=True, slots=True)
class Check:
    """Answered by an `AssertionError`, as a value, when the books are wrong: that is no reason to undo the rest."""


Action = Hold | Settle | Renew | Expire | Look | Check
Answer = Refused | Balance | AssertionError | bool | int | None


def perform(books: Books, action: Action) -> Answer:
    """Carry out one action on the books, which hold every row that it touches."""
    match action:
        case Hold():
            return books.reserve(action)
        case Settle(id, tokens):
            return books.settle(id, tokens)
        case Renew(leases):
            books.renew(leases)
            return None
        case Expire(now):
            return books.expire(now)
        case Look(tenant, window):
            return books.balance(tenant, window)
        case Check():
            try:
                books.check()
            except AssertionError as wrong:
                return wrong
            return None
