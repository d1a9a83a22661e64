"""What only a file shared by processes can show."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tiergate.budget import StoreUnavailable
from tiergate.budget.actions import Action, Answer, Check, Settle
from tiergate.budget.sqlite_books import SqliteBooks
from tiergate.budget.store import Hold, Window
from tiergate.budget.stores.sqlite import SqliteStore

DAY = "day:2027-01-15"

WRITER = """
import sys
sys.path[:0] = sys.argv[4:]
from pathlib import Path
from tiergate.budget.actions import Look, Settle
from tiergate.budget.sqlite_books import SqliteBooks
from tiergate.budget.store import Hold, Window

file, name, count = sys.argv[1:4]
books = SqliteBooks(Path(file), patience=60.0)
window = Window(name="day", key="day:2027-01-15", limit=10_000, ends=0.0)
for n in range(int(count)):
    hold = Hold(id=f"{name}-{n}", tenant="a", windows=(window,), tokens=7, measured=2, expires=1.0)
    assert books.apply([hold]) == [None]
    print("reserved", n, flush=True)
    assert books.apply([Settle(f"{name}-{n}", 3)]) == [True]
    print("settled", n, flush=True)
"""


def writer(file: Path, name: str, count: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, str(file), name, str(count), *sys.path]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def hold(id: str, limit: int | None = None, tokens: int = 10) -> Hold:
    window = Window(name="day", key=DAY, limit=limit, ends=0.0)
    return Hold(id=id, tenant="a", windows=(window,), tokens=tokens, measured=2, expires=1.0)


async def test_a_writer_killed_in_mid_stream_loses_nothing(tmp_path: Path) -> None:
    with writer(tmp_path / "b", "w", 100_000) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(301)]
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.readlines()
    reserved = sum(line.startswith("reserved") for line in lines)
    settled = sum(line.startswith("settled") for line in lines)
    assert process.returncode == -signal.SIGKILL
    store = SqliteStore(SqliteBooks(tmp_path / "b"))
    await store.check()
    balance = await store.balance("a", DAY)
    # The last line may not have been printed yet when the transaction behind it was done.
    assert reserved <= balance.granted <= reserved + 1
    assert settled <= balance.settled_grants <= settled + 1
    assert balance.spent == 3 * balance.settled_grants
    assert balance.reserved == 7 * balance.open_grants
    assert await store.expire(2.0) == balance.open_grants
    after = await store.balance("a", DAY)
    assert (after.reserved, after.open_grants) == (0, 0)
    assert after.spent == balance.spent + 2 * balance.open_grants
    await store.check()
    await store.close()


async def test_processes_share_a_file(tmp_path: Path) -> None:
    writers = [writer(tmp_path / "b", f"w{n}", 60) for n in range(3)]
    for process in writers:
        with process:
            process.communicate(timeout=60)
        assert process.returncode == 0
    store = SqliteStore(SqliteBooks(tmp_path / "b"))
    await store.check()
    balance = await store.balance("a", DAY)
    assert (balance.reserved, balance.spent, balance.settled_grants) == (0, 3 * 180, 180)
    await store.close()


class Slow(SqliteBooks):
    """Books whose transactions wait until they may go, and can be told to fail."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.go = threading.Event()
        self.go.set()
        self.failures = 0
        self.batches: list[int] = []

    def apply(self, actions: Sequence[Action]) -> list[Answer]:
        assert self.go.wait(30)
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("out of reach")
        self.batches.append(len(actions))
        return super().apply(actions)


async def test_what_arrives_together_is_written_together(tmp_path: Path) -> None:
    books = Slow(tmp_path / "b")
    store = SqliteStore(books)
    books.go.clear()
    calls = [asyncio.create_task(store.reserve(hold("first", limit=10_000)))]
    await asyncio.sleep(0.01)
    for n in range(50):
        calls.append(asyncio.create_task(store.reserve(hold(str(n), limit=10_000))))
        await asyncio.sleep(0)
    books.go.set()
    assert await asyncio.gather(*calls) == [None] * 51
    assert books.batches == [1, 50]
    await store.close()


async def test_a_slow_file_never_blocks_the_loop_nor_a_promise(tmp_path: Path) -> None:
    books = Slow(tmp_path / "b")
    store = SqliteStore(books, lag=0.0)
    books.go.clear()
    for n in range(100):
        assert await store.reserve(hold(str(n))) is None
        await asyncio.sleep(0)
    books.go.set()
    assert await store.settle("99", 5)
    assert (await store.balance("a", DAY)).open_grants == 99
    await store.close()


async def test_a_promise_is_kept_when_the_file_is_out_of_reach(tmp_path: Path) -> None:
    books = Slow(tmp_path / "b")
    store = SqliteStore(books, lag=0.0)
    books.failures = 2
    await store.reserve(hold("promised"))
    with pytest.raises(StoreUnavailable):
        await store.settle("promised", 5)
    with pytest.raises(StoreUnavailable):
        await store.reserve(hold("asked", limit=100))
    balance = await store.balance("a", DAY)
    assert (balance.granted, balance.reserved) == (1, 10)
    assert await store.settle("promised", 5)
    await store.check()
    await store.close()


async def test_a_promise_is_written_before_the_store_closes(tmp_path: Path) -> None:
    store = SqliteStore(SqliteBooks(tmp_path / "b"), lag=60.0)
    await store.reserve(hold("promised"))
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.reserve(hold("late", limit=100))
    again = SqliteStore(SqliteBooks(tmp_path / "b"))
    assert (await again.balance("a", DAY)).granted == 1
    await again.close()


async def test_promises_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiergate.budget.stores.sqlite.MOST_PROMISED", 3)
    store = SqliteStore(SqliteBooks(tmp_path / "b"), lag=60.0)
    for n in range(3):
        await store.reserve(hold(str(n)))
    with pytest.raises(StoreUnavailable):
        await store.reserve(hold("one too many"))
    await store.close()


async def test_books_that_are_wrong_are_found(tmp_path: Path) -> None:
    store = SqliteStore(SqliteBooks(tmp_path / "b"))
    await store.reserve(hold("x"))
    await store.check()
    with sqlite3.connect(tmp_path / "b", isolation_level=None) as other:
        other.execute("UPDATE accounts SET reserved = 9")
    other.close()
    with pytest.raises(AssertionError, match="reserved=9"):
        await store.check()
    await store.close()


def test_a_locked_file_is_unavailable_and_nothing_was_done(tmp_path: Path) -> None:
    books = SqliteBooks(tmp_path / "b", patience=0.05)
    other = sqlite3.connect(tmp_path / "b", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        books.apply([hold("x")])
    other.execute("ROLLBACK")
    other.close()
    assert books.apply([Settle("x", 1), Check()]) == [False, None]
    books.close()


def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    books = SqliteBooks(tmp_path / "b")
    books.close()
    other = sqlite3.connect(tmp_path / "b", isolation_level=None)
    other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(StoreUnavailable, match="version 99"):
        SqliteBooks(tmp_path / "b")


async def test_a_store_closed_while_it_writes_writes_the_rest(tmp_path: Path) -> None:
    books = Slow(tmp_path / "b")
    store = SqliteStore(books, lag=0.0)
    books.go.clear()
    await store.reserve(hold("first"))
    await asyncio.sleep(0.01)
    await store.reserve(hold("second"))
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    books.go.set()
    await closing
    again = SqliteBooks(tmp_path / "b")
    assert again.apply([Settle("first", 1), Settle("second", 1)]) == [True, True]
    again.close()


async def test_a_store_that_cannot_write_closes_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    books = Slow(tmp_path / "b")
    store = SqliteStore(books, lag=60.0)
    books.failures = 100
    await store.reserve(hold("lost"))
    await store.close()
    assert "1 grants were never written" in caplog.text
