"""Bookkeeping itself, on plain dicts: all the books of a memory store, or the rows that one transaction touches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .store import Hold, Lease, Refused
from .types import Balance

CORRECTABLE = 7 * 86400.0
"""Seconds for which a grant that was settled by expiry waits for its true settlement."""


@dataclass(frozen=True, slots=True)
class Account:
    """The books of one tenant in one window. `granted` is counted by itself, so that it can be checked."""

    reserved: int = 0
    spent: int = 0
    open: int = 0
    settled: int = 0
    granted: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A grant on the books: open, or `expired` and settled at `measured`."""

    tenant: str
    windows: tuple[str, ...]
    tokens: int
    measured: int
    expires: float
    expired: bool = False


EMPTY = Account()


class Books:
    """Accounts by (tenant, window key) and grants by id. Values are frozen, so an identity tells what has changed."""

    __slots__ = ("accounts", "entries")

    def __init__(
        self, accounts: dict[tuple[str, str], Account] | None = None, entries: dict[str, Entry] | None = None
    ) -> None:
        self.accounts = {} if accounts is None else accounts
        self.entries = {} if entries is None else entries

    def reserve(self, hold: Hold) -> Refused | None:
        tenant = hold.tenant
        for window in hold.windows:
            if window.limit is not None:
                account = self.accounts.get((tenant, window.key), EMPTY)
                if account.reserved + account.spent + hold.tokens > window.limit:
                    return Refused(window, account.reserved, account.spent)
        for window in hold.windows:
            account = self.accounts.get((tenant, window.key), EMPTY)
            self.accounts[tenant, window.key] = Account(
                account.reserved + hold.tokens, account.spent, account.open + 1, account.settled, account.granted + 1
            )
        keys = tuple(window.key for window in hold.windows)
        self.entries[hold.id] = Entry(tenant, keys, hold.tokens, hold.measured, hold.expires)
        return None

    def settle(self, id: str, tokens: int) -> bool:
        entry = self.entries.pop(id, None)
        if entry is None:
            return False
        if entry.expired:
            for key in entry.windows:
                account = self.accounts[entry.tenant, key]
                self.accounts[entry.tenant, key] = Account(
                    account.reserved,
                    account.spent + tokens - entry.measured,
                    account.open,
                    account.settled,
                    account.granted,
                )
        else:
            self._close(entry, tokens)
        return True

    def renew(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            entry = self.entries.get(lease.id)
            if entry is not None and not entry.expired:
                tokens, measured = entry.tokens, max(entry.measured, lease.measured)
                if lease.tokens is not None and lease.tokens < tokens:
                    self._give_back(entry, tokens - lease.tokens)
                    tokens = lease.tokens
                    measured = min(measured, tokens)
                expires = max(entry.expires, lease.expires)
                self.entries[lease.id] = Entry(entry.tenant, entry.windows, tokens, measured, expires)

    def expire(self, now: float) -> int:
        due = [(id, entry) for id, entry in self.entries.items() if entry.expires <= now]
        count = 0
        for id, entry in due:
            if not entry.expired:
                self._close(entry, entry.measured)
                self.entries[id] = Entry(
                    entry.tenant, entry.windows, entry.tokens, entry.measured, entry.expires, expired=True
                )
                count += 1
            elif entry.expires + CORRECTABLE <= now:
                del self.entries[id]
        return count

    def balance(self, tenant: str, window: str) -> Balance:
        account = self.accounts.get((tenant, window), EMPTY)
        return Balance(
            tenant=tenant,
            window=window,
            reserved=account.reserved,
            spent=account.spent,
            open_grants=account.open,
            settled_grants=account.settled,
            granted=account.granted,
        )

    def check(self) -> None:
        reserved: dict[tuple[str, str], int] = {}
        opened: dict[tuple[str, str], int] = {}
        for entry in self.entries.values():
            if not entry.expired:
                for key in entry.windows:
                    place = (entry.tenant, key)
                    reserved[place] = reserved.get(place, 0) + entry.tokens
                    opened[place] = opened.get(place, 0) + 1
        missing = opened.keys() - self.accounts.keys()
        if missing:
            raise AssertionError(f"open grants without an account: {sorted(missing)}")
        for place, account in self.accounts.items():
            right = Account(
                reserved.get(place, 0), max(account.spent, 0), opened.get(place, 0), account.settled, account.granted
            )
            if account != right or account.settled < 0 or account.granted != account.open + account.settled:
                raise AssertionError(f"{place}: the books say {account}, the open grants {right}")

    def _give_back(self, entry: Entry, tokens: int) -> None:
        for key in entry.windows:
            account = self.accounts[entry.tenant, key]
            self.accounts[entry.tenant, key] = replace(account, reserved=account.reserved - tokens)

    def _close(self, entry: Entry, tokens: int) -> None:
        for key in entry.windows:
            account = self.accounts[entry.tenant, key]
            self.accounts[entry.tenant, key] = Account(
                account.reserved - entry.tokens,
                account.spent + tokens,
                account.open - 1,
                account.settled + 1,
                account.granted,
            )
