"""One connection: uvicorn's HTTP/1.1, with bounds on what a client may send and every mistake answered in JSON.

One request at a time. A client that sends a second one before the first is answered gets its first answer and then the
connection's end, as RFC 9112 section 9.6 has it: taking both in would mean not to read on, and whoever does not read
does not notice that the client has left.
"""

from __future__ import annotations

import asyncio
import http
import logging
from functools import partial
from typing import Any, Final, cast

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from .direct import EXTENSION, Direct
from .errors import BadRequest, GatewayError, HeadTooLarge, Problem, RequestLate, ShuttingDown, describe, openai_error
from .record import new_id

HEAD_BYTES: Final = 64 * 1024
"""Most bytes of a request's line and header fields, and again of what follows its body; also of what means nothing."""
HEAD_FIELDS: Final = 256
HEAD_SECONDS: Final = 30.0
"""From a request's first byte to the end of its head."""
LINGER: Final = 2.0
"""Seconds that a refused client has to read why, while whatever else it sends is thrown away."""

log = logging.getLogger(__name__)


class Protocol(HttpToolsProtocol):
    parser: httptools.HttpRequestParser
    """Gone once the connection is, and not used any more then."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.url = b""
        self.headers = []
        self._head_since: float | None = None
        """When the head that is coming in began."""
        self._arrived = 0
        """Bytes since then, those before it in the same piece included."""
        self._idle = 0
        """Bytes of whole pieces that brought neither a head to its end nor any body."""
        self._deaf = False
        """Nothing more is taken from this client."""
        self._refusal: GatewayError | None = None
        self._direct: Direct | None = None
        """Of the latest request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if self._direct is not None:
            self._direct.gone()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        self._idle += len(data)
        self._arrived = self._arrived + len(data) if self._head_since is not None else len(data)
        try:
            self._feed(data)
            self._check_size(self._idle)
        except (httptools.HttpParserError, GatewayError):
            self._refuse(self._refusal or BadRequest("The request is not valid HTTP/1.1.", code="invalid_http"))
        if not self._deaf:
            self._wait_on()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            (end,) = upgrade.args
            head = self._plain_head()
            # The old one may have seen its connection's last request.
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._feed(head + data[end:])

    def _plain_head(self) -> bytes:
        """The head that has just come, without its wish for another protocol.

        A server may pass over that wish (RFC 9110, section 7.8), but the parser then takes what follows for the other
        protocol and not for the body that it is. Clients that would rather speak HTTP/2 send such requests.
        """
        version = self.parser.get_http_version().encode()
        line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)
        fields = [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        return b"\r\n".join([line, *fields, b"", b""])

    @property
    def _comes_again(self) -> bool:
        """The head wishes for another protocol, and `_feed` will show it once more without that."""
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def on_message_begin(self) -> None:
        if self._busy:
            raise self._refused(BadRequest("One request at a time.", code="invalid_http"))
        super().on_message_begin()
        self._head_since = self.loop.time()

    def on_headers_complete(self) -> None:
        self._check_size(0)
        if self._comes_again:
            return
        self._head_since, self._idle = None, 0
        if [name for name, _ in self.headers].count(b"host") != 1 and self.parser.get_http_version() == "1.1":
            raise self._refused(BadRequest("A request needs exactly one Host header.", code="invalid_host"))
        super().on_headers_complete()
        # Fields that follow a body are counted like any others, and mean nothing here.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        self._idle = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._comes_again:
            return
        self._idle = 0
        super().on_message_complete()

    @property
    def _busy(self) -> bool:
        """A request is being read or answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _check_size(self, idle: int) -> None:
        """Raises `HeadTooLarge`."""
        fields = self.headers
        if (
            idle > HEAD_BYTES
            or len(fields) > HEAD_FIELDS
            or (self._arrived > HEAD_BYTES and len(self.url) + _size(fields) > HEAD_BYTES)
        ):
            raise self._refused(HeadTooLarge(HEAD_BYTES, HEAD_FIELDS))

    def _refused(self, why: GatewayError) -> GatewayError:
        # What is raised through the parser comes out as an error of the parser's.
        self._refusal = why
        return why

    def _refuse(self, why: GatewayError) -> None:
        """Take nothing more; tell the client unless it is being answered just now, and close when that is done."""
        self._deaf = True
        cycle = self.cycle
        if self._busy and (cycle.response_started or not cycle.more_body):
            cycle.keep_alive = False
            return
        if self._busy:
            # Its own body is what cannot be read: whoever waits for it learns that nothing more will come.
            cycle.disconnected = True
            cycle.message_event.set()
        problem = describe(why)
        log.info("refused: %s", problem.code)
        self.transport.write(_response(problem))
        # Closed with something unread, the connection would be reset, and the client might never see why.
        self.transport.write_eof()
        self._wait(LINGER)

    def _wait_on(self) -> None:
        """A head must come to its end, and a connection without a request to the next one."""
        if self._head_since is not None:
            self._wait(self._head_since + HEAD_SECONDS - self.loop.time())
        elif not self._busy:
            self._wait(self.timeout_keep_alive)

    def _wait(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(max(seconds, 0.0), self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        if self._deaf or self._head_since is None:
            super().timeout_keep_alive_handler()
        else:
            self._refuse(RequestLate(HEAD_SECONDS))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._direct = Direct(cycle)
        cycle.scope["extensions"] = {EXTENSION: self._direct}  # type: ignore[dict-item]
        # uvicorn and Starlette have types of their own for the same protocol.
        guarded: Any = partial(_answered, cycle, cast(ASGIApp, app))
        super()._start_asgi_task(cycle, guarded)


async def _answered(cycle: RequestResponseCycle, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the application; what it lets through is answered in JSON all the same, its end by the server's own too."""
    if scope["http_version"] == "1.0":
        send = _unchunked(cycle, send)
    try:
        await app(scope, receive, send)
        return
    except asyncio.CancelledError:
        problem = describe(ShuttingDown("cancelled"))
    except Exception as error:
        problem = describe(error)
        log.exception("a request ended with an error that nobody caught")
    if cycle.response_started:
        cycle.transport.close()
        return
    body = openai_error(problem)
    await send({"type": "http.response.start", "status": problem.status, "headers": list(_headers(problem, body))})
    await send({"type": "http.response.body", "body": body})


def _unchunked(cycle: RequestResponseCycle, send: Send) -> Send:
    """`send` to a client that knows no chunks: it reads until the connection ends (RFC 9112, section 6.3)."""

    endless = False

    async def plain(message: Message) -> None:
        nonlocal endless
        if message["type"] == "http.response.start":
            endless = all(name != b"content-length" for name, _ in message.get("headers", ()))
            if endless:
                cycle.chunked_encoding = False
        elif endless:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return plain


def _size(headers: list[tuple[bytes, bytes]]) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers)


def _response(problem: Problem) -> bytes:
    """The bytes of a response where there is no request to respond to."""
    body = openai_error(problem)
    lines = [b"HTTP/1.1 %d %b" % (problem.status, http.HTTPStatus(problem.status).phrase.encode())]
    lines += [b"%b: %b" % header for header in _headers(problem, body)]
    return b"\r\n".join([*lines, b"", body])


def _headers(problem: Problem, body: bytes) -> tuple[tuple[bytes, bytes], ...]:
    own = tuple(header for header in problem.headers if header[0] != b"connection")
    return (
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", new_id().encode()),
        (b"connection", b"close"),
        *own,
    )
