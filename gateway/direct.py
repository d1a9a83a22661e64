"""The short way between a request's handler and the server's connection, for what ASGI takes several messages for.

An ASGI extension of our own server. Everything here happens at once and nothing is awaited; where it cannot, it says
so, and the handler goes the long way, as it does on any other server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

EXTENSION: Final = "tiergate.direct"
CLOSE: Final = (b"connection", b"close")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""What a header's value may not hold (RFC 9110, section 5.5)."""


class Direct:
    """One request and its response, beside the ASGI callables of the same."""

    __slots__ = ("_cycle", "_gone")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._gone: Callable[[], None] | None = None

    def body(self) -> bytes | None:
        """The request's body, if all of it is there; nothing needs to be received then. None if it is not."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()
        return body

    def whole(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """The whole response in one piece; false, and nothing is written, while its client is behind or gone.

        `headers` name everything but the body's length; `CLOSE` among them ends the connection.
        """
        cycle = self._cycle
        if cycle.response_started or cycle.flow.write_paused or cycle.disconnected:
            return False
        all_headers = [*cycle.default_headers, *headers]
        if _CONTROL.search(b"".join([value for _, value in all_headers])):
            raise RuntimeError("a header's value holds a control character")
        head = b"".join([b"%b: %b\r\n" % header for header in all_headers])
        told = CLOSE in headers
        close = b"" if cycle.keep_alive or told else b"connection: close\r\n"
        cycle.keep_alive = cycle.keep_alive and not told
        cycle.response_started = cycle.response_complete = True
        cycle.transport.write(
            b"%b%b%bcontent-length: %d\r\n\r\n%b" % (STATUS_LINE[status], head, close, len(body), body)
        )
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True

    @property
    def ready(self) -> bool:
        """Whether a stream has begun and its client takes what it is sent."""
        cycle = self._cycle
        return not cycle.flow.write_paused and not cycle.disconnected and cycle.chunked_encoding is True

    def write(self, data: bytes) -> None:
        """Part of a stream, not empty. Only while `ready`."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def when_gone(self, call: Callable[[], None]) -> None:
        """Have `call`, and no earlier one, called should the client leave before its response is complete."""
        self._gone = call
        if self._cycle.disconnected:
            self.gone()
        else:
            # A connection that is not read does not notice that its client has left.
            self._cycle.flow.resume_reading()

    def gone(self) -> None:
        """The connection is lost."""
        if self._gone is not None and not self._cycle.response_complete:
            self._gone()


def direct_of(scope: Scope) -> Direct | None:
    """None on another server, and behind what wants to see every message."""
    found: Direct | None = scope.get("extensions", {}).get(EXTENSION)
    return found
