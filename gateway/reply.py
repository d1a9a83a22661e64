"""The few words of ASGI that the hot path speaks itself to answer, whole or in parts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from starlette.types import Send

from .direct import Direct
from .sse import HEADERS as SSE_HEADERS
from .stall import StallWatch

RawHeaders = Sequence[tuple[bytes, bytes]]
JSON: Final = (b"content-type", b"application/json")


class Reply:
    """One response: knows whether it has begun and ended, and what goes on every response."""

    __slots__ = ("_began", "_direct", "_id", "_send", "_stall", "_watch", "begun", "ended")

    def __init__(self, send: Send, *, id: str, stall: float, direct: Direct | None = None) -> None:
        """`stall`: seconds that one write may wait for a client that does not read."""
        self._send = send
        self._direct = direct
        self._id = id.encode()
        self._stall = stall
        self._began = time.perf_counter()
        self._watch: StallWatch | None = None
        self.begun = False
        self.ended = False

    @property
    def seconds(self) -> float:
        """Since the request arrived."""
        return time.perf_counter() - self._began

    async def whole(self, status: int, body: bytes, headers: RawHeaders = ()) -> None:
        common = self._common()
        if self._direct is None or not self._direct.whole(status, (*common, JSON, *headers), body):
            length = (b"content-length", b"%d" % len(body))
            self.begun = True
            await self._send(
                {"type": "http.response.start", "status": status, "headers": [*common, JSON, length, *headers]}
            )
            await self._send({"type": "http.response.body", "body": body})
        self.begun = self.ended = True

    async def stream(self, headers: RawHeaders) -> None:
        """Begin a stream of server-sent events, and look after it until `close`."""
        self._watch = StallWatch(self._stall)
        self.begun = True
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*self._common(), *SSE_HEADERS, *headers]}
        )

    @property
    def ready(self) -> bool:
        """Whether `part_now` is possible: the stream has begun, and its client takes what it is sent."""
        return self._direct is not None and self._direct.ready

    def part_now(self, data: bytes) -> None:
        """The next events of a stream, none or more, without waiting. Only while `ready`."""
        assert self._direct is not None, "not ready"
        if data:
            self._direct.write(data)

    async def part(self, data: bytes, *, last: bool = False) -> None:
        """The next bytes of a stream, none or more events. Raises `SlowReader`."""
        assert self._watch is not None, "stream() comes first"
        with self._watch:
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        self.ended = last

    def close(self) -> None:
        """The response is over, well or badly."""
        if self._watch is not None:
            self._watch.close()

    def _common(self) -> tuple[tuple[bytes, bytes], ...]:
        """What goes on every response."""
        return ((b"x-request-id", self._id), (b"openai-processing-ms", b"%d" % (self.seconds * 1000)))
