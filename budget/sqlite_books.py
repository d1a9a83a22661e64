"""Books in an SQLite file: many actions, one transaction. Blocking; called from one thread at a time."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .actions import Action, Answer, Check, Expire, Look, Renew, Settle, perform
from .books import Account, Books, Entry
from .errors import StoreUnavailable
from .store import Hold

VERSION = 1
"""Of the tables below, kept in the file's `user_version`."""

TABLES = """
CREATE TABLE IF NOT EXISTS accounts (
    tenant TEXT NOT NULL,
    window TEXT NOT NULL,
    reserved INTEGER NOT NULL CHECK (reserved >= 0),
    spent INTEGER NOT NULL CHECK (spent >= 0),
    open INTEGER NOT NULL CHECK (open >= 0),
    settled INTEGER NOT NULL CHECK (settled >= 0),
    granted INTEGER NOT NULL CHECK (granted = open + settled),
    PRIMARY KEY (tenant, window)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS grants (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    windows TEXT NOT NULL,
    tokens INTEGER NOT NULL CHECK (tokens >= 0),
    measured INTEGER NOT NULL CHECK (measured >= 0),
    expires REAL NOT NULL,
    expired INTEGER NOT NULL
) WITHOUT ROWID;
"""

SELECT_ACCOUNTS = "SELECT tenant, window, reserved, spent, open, settled, granted FROM accounts"
NAMED_ACCOUNTS = f"""{SELECT_ACCOUNTS} WHERE (tenant, window) IN
    (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?))"""
SELECT_ENTRIES = "SELECT id, tenant, windows, tokens, measured, expires, expired FROM grants"
NAMED_ENTRIES = f"{SELECT_ENTRIES} WHERE id IN (SELECT value FROM json_each(?))"
DUE_ENTRIES = f"{SELECT_ENTRIES} WHERE expires <= ?"
OPEN_ENTRIES = f"{SELECT_ENTRIES} WHERE expired = 0"
PUT_ACCOUNT = "INSERT OR REPLACE INTO accounts VALUES (?, ?, ?, ?, ?, ?, ?)"
PUT_ENTRY = "INSERT OR REPLACE INTO grants VALUES (?, ?, ?, ?, ?, ?, ?)"
DROP_ENTRY = "DELETE FROM grants WHERE id = ?"


class SqliteBooks:
    """One connection to the file, which several processes may have open.

    Write-ahead log with `synchronous=NORMAL`: what was committed survives the death of every process; a power cut may
    take the last moments before it, and never damages the file. https://sqlite.org/wal.html
    """

    def __init__(self, path: Path, patience: float = 2.0) -> None:
        """Opens or makes the file; `patience` is how many seconds to wait for another process's transaction.

        Raises `StoreUnavailable`.
        """
        self._file: sqlite3.Connection | None = None
        with _unavailable(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
            try:
                _prepare(file, time.monotonic() + patience)
            except BaseException:
                file.close()
                raise
        self._path = path
        self._file = file

    def apply(self, actions: Sequence[Action]) -> list[Answer]:
        """Carry out all actions in order in one transaction, and return their answers.

        Raises `StoreUnavailable`; nothing was done then.
        """
        with _unavailable(self._path):
            if self._file is None:
                raise sqlite3.ProgrammingError("the store is closed")
            with _transaction(self._file):
                books = _read(self._file, actions)
                accounts, entries = dict(books.accounts), dict(books.entries)
                answers = [perform(books, action) for action in actions]
                _write(self._file, books, accounts, entries)
            return answers

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _prepare(file: sqlite3.Connection, deadline: float) -> None:
    while True:
        try:
            # SQLite does not wait by itself when two processes want to switch a new file to the log at once.
            file.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    file.execute("PRAGMA synchronous = NORMAL")
    with _transaction(file):
        (version,) = file.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError(f"its tables are of version {version}, this program knows version {VERSION}")
        if version == 0:
            for statement in TABLES.split(";")[:-1]:
                file.execute(statement)
            file.execute(f"PRAGMA user_version = {VERSION}")


def _read(file: sqlite3.Connection, actions: Sequence[Action]) -> Books:
    """The rows that these actions touch."""
    books = Books()
    if any(isinstance(action, Check) for action in actions):
        _add_entries(books, file.execute(OPEN_ENTRIES))
        _add_accounts(books, file.execute(SELECT_ACCOUNTS))
    made = {action.id for action in actions if isinstance(action, Hold)}
    named = {action.id for action in actions if isinstance(action, Settle)}
    named.update(lease.id for action in actions if isinstance(action, Renew) for lease in action.leases)
    if named - made:
        _add_entries(books, file.execute(NAMED_ENTRIES, (json.dumps(list(named - made)),)))
    latest = max((action.now for action in actions if isinstance(action, Expire)), default=None)
    if latest is not None:
        _add_entries(books, file.execute(DUE_ENTRIES, (latest,)))
    places = {(entry.tenant, key) for entry in books.entries.values() for key in entry.windows}
    for action in actions:
        if isinstance(action, Hold):
            places.update((action.tenant, window.key) for window in action.windows)
        elif isinstance(action, Look):
            places.add((action.tenant, action.window))
    places.difference_update(books.accounts)
    if places:
        _add_accounts(books, file.execute(NAMED_ACCOUNTS, (json.dumps(list(places)),)))
    return books


def _add_accounts(books: Books, rows: Iterable[tuple[Any, ...]]) -> None:
    for tenant, window, *counts in rows:
        books.accounts[tenant, window] = Account(*counts)


def _add_entries(books: Books, rows: Iterable[tuple[Any, ...]]) -> None:
    for id, tenant, windows, tokens, measured, expires, expired in rows:
        books.entries[id] = Entry(tenant, tuple(windows.split(" ")), tokens, measured, expires, bool(expired))


def _write(
    file: sqlite3.Connection, books: Books, accounts: dict[tuple[str, str], Account], entries: dict[str, Entry]
) -> None:
    """Write back what differs from the rows as they were read."""
    changed = [
        (*place, a.reserved, a.spent, a.open, a.settled, a.granted)
        for place, a in books.accounts.items()
        if accounts.get(place) is not a
    ]
    opened = [
        (id, e.tenant, " ".join(e.windows), e.tokens, e.measured, e.expires, int(e.expired))
        for id, e in books.entries.items()
        if entries.get(id) is not e
    ]
    closed = [(id,) for id in entries.keys() - books.entries.keys()]
    if changed:
        file.executemany(PUT_ACCOUNT, changed)
    if opened:
        file.executemany(PUT_ENTRY, opened)
    if closed:
        file.executemany(DROP_ENTRY, closed)


@contextlib.contextmanager
def _transaction(file: sqlite3.Connection) -> Iterator[None]:
    file.execute("BEGIN IMMEDIATE")
    try:
        yield
        file.execute("COMMIT")
    except BaseException:
        if file.in_transaction:
            file.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def _unavailable(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system say about the file into `StoreUnavailable`; a broken invariant stays itself."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailable(f"{path.name}: {error}") from error
