"""Reads request bodies, and gives up on those that do not come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Receive

from .errors import BodyTooLarge, ClientGone, GatewayError, RequestLate


@dataclass(slots=True, eq=False)
class _Reader:
    task: asyncio.Task[object]
    since: float
    """When its body last grew."""
    reason: GatewayError | None = None
    """Why it was interrupted."""


class Readers:
    """The requests whose bodies are on their way: not running yet, so that nothing waits for them.

    One timer looks after them all, since nearly every body is there at once.
    """

    def __init__(self, patience: float) -> None:
        """`patience`: seconds, or half as many more, that a body may stand still."""
        self._patience = patience
        self._open: set[_Reader] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    async def read(self, receive: Receive, declared: bytes | None, limit: int) -> bytes:
        """The whole body. `declared` is the Content-Length header, if any.

        Raises `BodyTooLarge` before reading what is too much, `ClientGone`, `RequestLate`, and what `cut` gives.
        """
        if declared is not None and declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
            raise BodyTooLarge(limit)
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        reader = _Reader(task, loop.time())
        self._open.add(reader)
        if self._timer is None:
            self._timer = loop.call_later(self._patience / 2, self._look)
        try:
            return await _read(receive, limit, reader, loop.time)
        except asyncio.CancelledError:
            # Not ours alone if somebody else cancelled the task as well.
            if reader.reason is not None and task.uncancel() == 0:
                raise reader.reason from None
            raise
        finally:
            self._open.discard(reader)

    def cut(self, reason: Callable[[], GatewayError]) -> None:
        """Interrupt all of them."""
        for reader in self._open:
            self._interrupt(reader, reason())

    def _interrupt(self, reader: _Reader, reason: GatewayError) -> None:
        # While it is in the set its task is suspended within `read`, so that the cancellation arrives there.
        if reader.reason is None:
            reader.reason = reason
            reader.task.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        for reader in self._open:
            if loop.time() - reader.since >= self._patience:
                self._interrupt(reader, RequestLate(self._patience))
        self._timer = loop.call_later(self._patience / 2, self._look) if self._open else None


async def _read(receive: Receive, limit: int, reader: _Reader, clock: Callable[[], float]) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise BodyTooLarge(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)
        if part:
            reader.since = clock()
