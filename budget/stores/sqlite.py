"""Books in a file that several processes may share and that outlives them: `sqlite:`, or `sqlite:path`.

The file is written from one thread of its own. The event loop gathers what it is asked and hands it over as one batch,
a transaction each, and the next one when that is done: the busier the gateway, the less a grant costs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..actions import Action, Answer, Check, Expire, Look, Renew, Settle
from ..errors import StoreUnavailable
from ..sqlite_books import SqliteBooks
from ..store import Hold, Lease, Refused
from ..types import Balance

LAG = 0.005
"""Seconds that something nobody waits for may wait for company."""
RETRY = 0.1
"""Seconds until a promise that could not be written is tried again."""
MOST_PROMISED = 20_000
"""Promised and not yet written; beyond it new ones fail."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Asked:
    action: Action
    answer: asyncio.Future[Any] | None
    """None for a promise: a hold without limits, whose caller has gone on with it already."""


class SqliteStore:
    """Used from one event loop, which alone touches what is queued; the file is touched by the thread alone.

    A hold without limits cannot be refused and so is promised at once; it reaches the file within milliseconds, before
    everything asked for after it. A promise stays queued until it is written, however long the file is out of reach.
    """

    def __init__(self, books: SqliteBooks, lag: float = LAG) -> None:
        """Owns `books` from here on; `lag` in seconds."""
        self._books = books
        self._lag = lag
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="budget-sqlite")
        self._queue: list[_Asked] = []
        self._wake: asyncio.Handle | None = None
        self._urgent = False
        self._writing: asyncio.Future[list[Answer]] | None = None
        self._failing = False
        self._closed = False

    async def reserve(self, hold: Hold) -> Refused | None:
        for window in hold.windows:
            if window.limit is not None:
                refused: Refused | None = await self._ask(hold, urgent=True)
                return refused
        if len(self._queue) >= MOST_PROMISED:
            raise StoreUnavailable("too many grants wait for the file")
        self._enqueue(_Asked(hold, None), urgent=False)
        return None

    async def settle(self, id: str, tokens: int) -> bool:
        did: bool = await self._ask(Settle(id, tokens), urgent=False)
        return did

    async def renew(self, leases: Sequence[Lease]) -> None:
        await self._ask(Renew(tuple(leases)), urgent=False)

    async def expire(self, now: float) -> int:
        count: int = await self._ask(Expire(now), urgent=False)
        return count

    async def balance(self, tenant: str, window: str) -> Balance:
        balance: Balance = await self._ask(Look(tenant, window), urgent=True)
        return balance

    async def check(self) -> None:
        wrong: AssertionError | None = await self._ask(Check(), urgent=True)
        if wrong is not None:
            raise wrong

    async def close(self) -> None:
        self._closed = True
        self._flush()
        while self._writing is not None:
            await asyncio.wait([self._writing])
            await asyncio.sleep(0)  # for `_written` to run
            if not self._failing:
                self._flush()
        if self._wake is not None:
            self._wake.cancel()
        if self._queue:
            log.error("%d grants were never written", len(self._queue))
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._books.close)
        self._thread.shutdown()

    def _ask(self, action: Action, *, urgent: bool) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._enqueue(_Asked(action, answer), urgent=urgent)
        return answer

    def _enqueue(self, asked: _Asked, *, urgent: bool) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        self._queue.append(asked)
        if urgent and not self._urgent:
            self._urgent = True
            self._schedule(0.0)
        elif self._wake is None:
            self._schedule(self._lag)

    def _schedule(self, delay: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        loop = asyncio.get_running_loop()
        self._wake = loop.call_later(delay, self._flush) if delay else loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._writing is not None or not self._queue:
            return
        batch, self._queue = self._queue, []
        if self._wake is not None:
            self._wake.cancel()
        self._wake, self._urgent = None, False
        actions = [asked.action for asked in batch]
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(self._thread, self._books.apply, actions)
        self._writing.add_done_callback(partial(self._written, batch))

    def _written(self, batch: list[_Asked], done: asyncio.Future[list[Answer]]) -> None:
        self._writing = None
        error = done.exception()
        self._failing = error is not None
        if error is None:
            for asked, answer in zip(batch, done.result(), strict=True):
                if asked.answer is not None and not asked.answer.done():
                    asked.answer.set_result(answer)
        else:
            self._fail(batch, error)
        if self._queue:
            self._schedule(0.0 if self._urgent else RETRY if error else self._lag)

    def _fail(self, batch: list[_Asked], error: BaseException) -> None:
        if isinstance(error, StoreUnavailable):
            log.warning("the books cannot be written: %s", error)
            self._queue[:0] = [asked for asked in batch if asked.answer is None]
        else:
            log.error("a batch of the books was dropped", exc_info=error)
        for asked in batch:
            if asked.answer is not None and not asked.answer.done():
                asked.answer.set_exception(StoreUnavailable(str(error)))


def open(place: str, folder: Path) -> SqliteStore:
    path = Path(place.removeprefix("//")) if place else Path("budget.sqlite3")
    return SqliteStore(SqliteBooks(folder / path.expanduser()))
