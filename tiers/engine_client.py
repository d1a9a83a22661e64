"""This process's side of an engine: starts it or joins it, notices its death, and gives each request its replies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import zmq

from tiergate.engine import EngineDead, EngineError, messages

from .engine_link import Link

log = logging.getLogger(__name__)

AnswerPart = messages.Tokens | messages.Finished | messages.Failed
"""What a request gets back."""


STARTING = "the engine is starting"
UNCONNECTED = 1.0
"""Seconds after which an engine that is to be joined and takes no connection is said not to be there."""
STALLED = 3.0
"""Heartbeats that may be late before the engine is taken to have given this client up."""


class Process(Protocol):
    """A launched engine, as `tiergate.engine.launch` returns it."""

    @property
    def address(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def alive(self) -> bool: ...
    def refusal(self) -> str: ...
    def stop(self, timeout: float = 5.0) -> None: ...


class Channel:
    """The replies to one request, in order. Holds at most `limit` of them: a reader that is slower is cut off."""

    __slots__ = ("_complete", "_heard", "_least", "_limit", "_loop", "_lost", "_replies", "_waiter", "id")

    def __init__(self, id: str, limit: int) -> None:
        self.id = id
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._replies: deque[AnswerPart] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._heard: Callable[[], None] | None = None
        self._least = 1
        self._complete = False
        self._lost: str | None = None

    def listen(self, heard: Callable[[], None] | None) -> None:
        """Have `heard` called when `collect` has something to give, as it comes, and when the rest is `lost`.

        It must not raise.
        """
        self._heard = heard

    def expect(self, least: int) -> None:
        """Call the listener for `least` replies or more, for fewer only with the last word or when no more can come."""
        self._least = min(least, self._limit)

    @property
    def lost(self) -> str | None:
        """Why no reply can come any more behind those that have; None while some can."""
        return self._lost

    def collect(self) -> list[AnswerPart]:
        """All replies that have come, none or more."""
        replies = list(self._replies)
        self._replies.clear()
        return replies

    async def take(self, least: int = 1) -> list[AnswerPart]:
        """All replies since the last call: `least` or more, fewer only with the last word or when no more can come.

        Raises `EngineDead` when none can come any more.
        """
        self._least = min(least, self._limit)
        if not self._ready():
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if not self._replies:
            raise EngineDead(self._lost or "the engine is gone")
        replies = list(self._replies)
        self._replies.clear()
        return replies

    def put(self, reply: messages.Tokens) -> bool:
        """Hand over more of the answer; false where the reader is too slow."""
        replies = self._replies
        if len(replies) >= self._limit:
            return False
        replies.append(reply)
        if len(replies) >= self._least:
            self._wake()
        return True

    def end(self, reply: AnswerPart) -> None:
        """Hand over the last word, which is always taken."""
        self._replies.append(reply)
        self._complete = True
        self._wake()

    def lose(self, reason: str) -> None:
        self._lost = reason
        self._wake()

    def _ready(self) -> bool:
        return len(self._replies) >= self._least or self._complete or self._lost is not None

    def _wake(self) -> None:
        if self._heard is not None:
            self._heard()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def restart_delay(base: float, deaths: int, most: float = 30.0) -> float:
    """Seconds before the next start, after `deaths` deaths in a row."""
    return min(base * 2.0 ** min(deaths - 1, 16), most)


@contextlib.contextmanager
def _exit_watch(process: Process | None, lose: Callable[[str], None]) -> Iterator[None]:
    """Have the event loop notice at once that a process ended, where the system can say so (Linux)."""
    if process is None or not hasattr(os, "pidfd_open"):
        yield
        return
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        lose("the engine process ended as it started")
        yield
        return
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(descriptor)
        process.alive()  # collects the status
        lose(f"the engine process ended with status {process.returncode}")

    loop.add_reader(descriptor, ended)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


class EngineClient:
    """Owns the connection, the engine process if it launched one, and the open requests."""

    def __init__(
        self,
        *,
        address: str = "",
        launch: Callable[[], Process] | None = None,
        delay: float = 0.2,
        heartbeat: float = 4.0,
        unanswered: int = 15,
        queue_limit: int = 4096,
    ) -> None:
        """Joins `address`, or starts its own engine by `launch`. `delay` and `heartbeat` in seconds.

        An engine that lets `unanswered` heartbeats go by in silence is taken to hang, and lost; a long step is no hang.
        """
        assert bool(address) != bool(launch)
        self._address = address
        self._launch = launch
        self._delay = delay
        self._heartbeat = heartbeat
        self._most_unanswered = unanswered
        self._unanswered = 0
        self._queue_limit = queue_limit
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._ids = itertools.count(1)
        self._channels: dict[str, Channel] = {}
        self._link: Link | None = None
        self._lanes: Mapping[str, messages.LaneInfo] = {}
        self._ready = asyncio.Event()
        self._inspections: list[asyncio.Future[Mapping[str, messages.LaneStats]]] = []
        self._lost: asyncio.Future[str] | None = None
        self._deaths = 0
        self._supervisor: asyncio.Task[None] | None = None
        self._served = False
        self.failure = ""
        """Why it will never be ready: the engine of ours said that it cannot start. Empty while there is hope."""
        self.reason = STARTING
        """Why it is not ready, in words."""
        self._own: int | None = None
        """Process id of the engine launched last."""
        self.pid: int | None = None
        """Process id of the engine that serves, by its own word."""

    def open(self) -> None:
        """Begin; the engine loads in the background."""
        self._supervisor = asyncio.create_task(self._supervise(), name="engine-client")

    async def close(self) -> None:
        """Stop the engine if it is ours. Open requests end with `EngineDead`."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait((self._supervisor,))
        self._context.destroy(linger=0)

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    @property
    def lanes(self) -> Mapping[str, messages.LaneInfo]:
        """What the engine serves; empty until it is ready."""
        return self._lanes

    async def wait_ready(self, seconds: float) -> bool:
        """Wait at most `seconds` for the engine."""
        if not self._ready.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ready.wait(), seconds)
        return self._ready.is_set()

    def new_id(self) -> str:
        return str(next(self._ids))

    def generate(self, command: messages.Generate) -> Channel:
        """Start a sequence under an id from `new_id`. Raises `EngineDead` when there is no engine to take it."""
        if self._link is None or not self._ready.is_set():
            raise EngineDead(self.reason)
        if not self._link.send((command,)):
            raise EngineDead("the engine does not take requests")
        channel = self._channels[command.id] = Channel(command.id, self._queue_limit)
        return channel

    def abort(self, id: str) -> None:
        """End a sequence; its channel still gets the last word. Harmless when it has ended."""
        if self._link is not None and id in self._channels:
            self._link.send((messages.Abort(id),))

    def forget(self, id: str) -> None:
        """Nobody reads this channel any more."""
        self._channels.pop(id, None)

    async def stats(self, patience: float = 1.0) -> Mapping[str, messages.LaneStats]:
        """A snapshot a lane; empty when the engine does not answer within `patience` seconds."""
        if self._link is None or not self._ready.is_set():
            return {}
        answer: asyncio.Future[Mapping[str, messages.LaneStats]] = asyncio.get_running_loop().create_future()
        self._inspections.append(answer)
        if len(self._inspections) == 1:
            self._link.send((messages.Inspect(),))
        try:
            return await asyncio.wait_for(answer, patience)
        except TimeoutError:
            return {}
        finally:
            with contextlib.suppress(ValueError):
                self._inspections.remove(answer)

    async def _supervise(self) -> None:
        while True:
            reason = await self._serve()
            if self.failure:
                return
            self._deaths += 1
            delay = restart_delay(self._delay, self._deaths)
            log.warning("engine lost: %s; next attempt in %.1f s", reason, delay)
            await asyncio.sleep(delay)

    async def _serve(self) -> str:
        """Run one engine, or one connection to it, until it is lost. Returns why."""
        process: Process | None = None
        link: Link | None = None
        reason = "the gateway is closing"
        try:
            if self._launch is not None:
                starting = asyncio.ensure_future(asyncio.to_thread(self._launch))
                try:
                    process = await asyncio.shield(starting)
                except asyncio.CancelledError:
                    process = await starting  # a thread cannot be cancelled, and its process must not be forgotten
                    raise
            self._unanswered = 0
            lost = self._lost = asyncio.get_running_loop().create_future()
            address = process.address if process is not None else self._address
            link = self._link = Link(self._context, address, self._read, self._lose)
            link.send((messages.Hello(),))
            self._own = process.pid if process is not None else None
            with _exit_watch(process, self._lose):
                while not lost.done():
                    began = lost.get_loop().time()
                    pause = self._heartbeat if self._ready.is_set() else min(self._heartbeat, UNCONNECTED)
                    await asyncio.wait((lost,), timeout=pause)
                    if lost.get_loop().time() - began > STALLED * self._heartbeat:
                        link.send([messages.Abort(id) for id in self._channels])
                        self._drop_requests("the gateway stood still for too long")
                    if process is not None and not process.alive():
                        self._lose(f"the engine process ended with status {process.returncode}")
                    elif self._unanswered >= self._most_unanswered:
                        self._lose("the engine does not answer any more")
                    elif self._ready.is_set():
                        self._unanswered += 1
                        link.send((messages.Hello(), messages.Inspect()))
                    elif process is None and not lost.done():
                        self.reason = STARTING if link.connected else f"nobody answers at {address}"
            reason = lost.result()
            refusal = await asyncio.to_thread(process.refusal) if process is not None else ""
            if refusal:
                reason = f"the engine cannot start: {refusal}"
                if not self._served:
                    self.failure = reason
        except (EngineError, OSError) as error:
            reason = f"the engine did not start: {error}"
        finally:
            self._end(link, reason)
            if process is not None:
                await asyncio.to_thread(process.stop)
        return reason

    def _end(self, link: Link | None, reason: str) -> None:
        self._ready.clear()
        self._lanes = {}
        self.pid = None
        self._link = None
        self.reason = reason
        if link is not None:
            link.close()
        self._drop_requests(reason)
        inspections, self._inspections = self._inspections, []
        for inspection in inspections:
            if not inspection.done():
                inspection.set_result({})

    def _drop_requests(self, reason: str) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.lose(reason)

    def _lose(self, reason: str) -> None:
        if self._lost is not None and not self._lost.done():
            # Requests must not begin, and open ones must not wait, until the supervisor gets its turn.
            self._lost.set_result(reason)
            self._end(self._link, reason)

    def _read(self, replies: list[messages.Reply]) -> None:
        self._unanswered = 0
        channels = self._channels
        for reply in replies:
            if type(reply) is messages.Tokens:  # nearly all are
                channel = channels.get(reply.id)
                if channel is not None and not channel.put(reply):
                    self._cut_off(channel)
            elif isinstance(reply, messages.Finished | messages.Failed):
                channel = channels.pop(reply.id, None)
                if channel is not None:
                    self._deaths = 0
                    channel.end(reply)
            elif isinstance(reply, messages.Stats):
                inspections, self._inspections = self._inspections, []
                for inspection in inspections:
                    if not inspection.done():
                        inspection.set_result(reply.lanes)
            elif isinstance(reply, messages.Ready):
                if self._own not in (None, reply.pid):
                    # Ours has yet to find its address taken, and to end.
                    self.reason = "another engine answers at the address of this one"
                    continue
                # It answers the first word of a client that the engine does not know, or knows no more.
                self._drop_requests("the engine had given this gateway up")
                channels = self._channels
                self._lanes, self.pid = reply.lanes, reply.pid
                self.reason = ""
                self._served = True
                self._ready.set()

    def _cut_off(self, channel: Channel) -> None:
        self.abort(channel.id)
        self.forget(channel.id)
        channel.lose("its reader fell too far behind")
