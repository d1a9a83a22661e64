"""Carries the events of one answer's choices from the tiers to the one who writes them.

An answer hands its events over as they come, or has a task that asks for them; the writer takes whatever has gathered
meanwhile in one go, so a burst costs one wake-up and one write, not one each. A writer that waits may let events be
written without waking it. The store between them is bounded: a client that does not read loses its own stream and
nobody else's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from tiergate.tiers import Answer, Event, Finish, GenerationFailed, Usage

from .errors import SlowReader

CUT_SHORT = "the stream ended before its answer was complete"

log = logging.getLogger(__name__)


Batch = list[tuple[int, Event]]
"""Events, each with its choice."""


class Relay:
    """Owns the answers of one request from their first event to their close."""

    def __init__(self, answers: Sequence[Answer], *, room: int, idle: float | None) -> None:
        """`room`: most events kept for the writer. `idle`: seconds after which `take` comes back with nothing."""
        self._answers = answers
        self._room = room
        self._idle = idle
        self._queue: Batch = []
        self._failure: BaseException | None = None
        self._running = set(range(len(answers)))
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._write: Callable[[Batch], bool] | None = None
        self._since = 0.0
        self._timer = None if idle is None else self._loop.call_later(idle, self._look)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        for index, answer in enumerate(answers):
            if not answer.follow(_Inlet(self, index)):
                self._tasks[index] = asyncio.create_task(self._follow(index, answer))

    def write_with(self, write: Callable[[Batch], bool]) -> None:
        """Have events that come while `take` waits for some written at once; `write` says whether it has done that.

        Those that it does not write are taken.
        """
        self._write = write

    async def take(self) -> Batch | None:
        """Everything that has gathered, after waiting for something; None once all choices have finished.

        An empty list means that `idle` seconds passed. Events that came before a failure are given out first, then the
        failure is raised.
        """
        if not self._queue and self._failure is None and self._running:
            await self._wait()
        if self._queue:
            batch, self._queue = self._queue, []
            return batch
        if self._failure is not None:
            raise self._failure
        return [] if self._running else None

    def abort(self, reason: BaseException) -> None:
        """End it now: what has gathered is dropped, `take` raises `reason`. The first reason stays."""
        self._fail(reason)
        self._queue.clear()
        self._wake()

    async def close(self) -> Usage:
        """Stop whatever still runs, wait until it has stopped, and count it all; safe to call again."""
        for index in self._running:
            if index in self._tasks:
                self._tasks[index].cancel()
            else:
                self._tasks[index] = asyncio.create_task(self._leave(self._answers[index]))
        # Those already closing their answer are left to it: a second interruption would cut that short.
        self._running.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending = [task for task in self._tasks.values() if not task.done()]
        if pending:
            await asyncio.wait(pending)
        return self.usage

    @property
    def usage(self) -> Usage:
        """Tokens so far, all choices together."""
        return count([answer.usage for answer in self._answers])

    def _put(self, batch: Batch) -> None:
        if self._failure is not None:
            return
        if self._write is not None and self._waiter is not None and not self._queue and not self._waiter.done():
            try:
                if self._write(batch):
                    self._since = self._loop.time()
                    return
            except Exception as error:
                self._end(error)
                return
        if len(self._queue) >= self._room:
            # A writer that is merely waiting for its turn gets it first.
            self._loop.call_soon(self._check_room)
        self._queue += batch
        self._wake()

    def _check_room(self) -> None:
        if len(self._queue) > self._room and self._running:
            del self._queue[self._room :]
            self._end(SlowReader())
            for index in self._running - self._tasks.keys():
                self._running.discard(index)
                self._tasks[index] = asyncio.create_task(self._leave(self._answers[index]))

    def _end(self, reason: BaseException) -> None:
        self._fail(reason)
        self._wake()

    def _over(self, index: int, finished: bool) -> None:
        """A choice that hands its events over has no more."""
        if not finished:
            self._fail(GenerationFailed(CUT_SHORT))
        self._running.discard(index)
        if finished and self._running:
            return
        self._wake()

    async def _follow(self, index: int, answer: Answer) -> None:
        finished = False
        try:
            async for event in answer:
                if len(self._queue) >= self._room:
                    # A writer that is merely waiting for its turn gets it here.
                    await asyncio.sleep(0)
                    if len(self._queue) >= self._room:
                        raise SlowReader
                self._queue.append((index, event))
                self._wake()
                if type(event) is Finish:
                    finished = event.reason != "abort"
        except Exception as error:
            self._fail(error)
        finally:
            if not finished:
                self._fail(GenerationFailed(CUT_SHORT))
            self._running.discard(index)
            self._wake()
            await self._leave(answer)

    async def _leave(self, answer: Answer) -> None:
        try:
            await answer.aclose()
        except Exception:
            # The client has its answer or its error by now; this one is for us.
            log.exception("an answer could not be closed")

    def _fail(self, reason: BaseException) -> None:
        if self._failure is None:
            self._failure = reason

    async def _wait(self) -> None:
        self._waiter = waiter = self._loop.create_future()
        self._since = self._loop.time()
        try:
            await waiter
        finally:
            self._waiter = None

    def _look(self) -> None:
        """One timer a relay instead of one a wait: wake who waits for too long, and look again when that can be due."""
        assert self._idle is not None
        now = self._loop.time()
        due = (now if self._waiter is None else self._since) + self._idle
        if due <= now:
            self._wake()
            due = now + self._idle
        self._timer = self._loop.call_at(due, self._look)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Inlet:
    """Where one choice hands over its events."""

    __slots__ = ("_finished", "_index", "_relay")

    def __init__(self, relay: Relay, index: int) -> None:
        self._relay = relay
        self._index = index
        self._finished = False

    def put(self, events: Sequence[Event]) -> None:
        index, last = self._index, events[-1]
        if type(last) is Finish:
            self._finished = last.reason != "abort"
        self._relay._put([(index, event) for event in events])

    def fail(self, error: Exception) -> None:
        self._relay._end(error)

    def over(self) -> None:
        self._relay._over(self._index, self._finished)


def count(usages: Sequence[Usage]) -> Usage:
    """The tokens of one request: its prompt once, as the choice that worked most on it says, and all output."""
    if len(usages) == 1:
        return usages[0]
    worked = max(usages, key=lambda usage: (usage.prompt_tokens, -usage.cached_tokens))
    return Usage(
        prompt_tokens=worked.prompt_tokens,
        cached_tokens=worked.cached_tokens,
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        forced_tokens=sum(usage.forced_tokens for usage in usages),
    )
