"""Runs an ASGI application in the test's own event loop: its lifespan alone, or on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from starlette.types import ASGIApp

from tiergate.gateway.app import App
from tiergate.gateway.config import ServerSpec
from tiergate.gateway.server import Server, listen


@contextlib.asynccontextmanager
async def opened(app: ASGIApp) -> AsyncIterator[None]:
    """The lifespan of `app` around the block. Fails when its start or its end fails."""
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outbox: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.create_task(
        app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, inbox.get, outbox.put)
    )
    try:
        await _step(inbox, outbox, task, "startup")
        yield
        await _step(inbox, outbox, task, "shutdown")
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def _step(
    inbox: asyncio.Queue[dict[str, Any]], outbox: asyncio.Queue[Any], task: asyncio.Task[None], name: str
) -> None:
    await inbox.put({"type": f"lifespan.{name}"})
    answer = asyncio.create_task(outbox.get())
    await asyncio.wait((answer, task), return_when=asyncio.FIRST_COMPLETED)
    if not answer.done():
        answer.cancel()
        await task
        raise AssertionError(f"the lifespan ended before its {name}")
    assert answer.result()["type"] == f"lifespan.{name}.complete", answer.result()


@contextlib.asynccontextmanager
async def served(app: App, spec: ServerSpec) -> AsyncIterator[tuple[str, Server]]:
    """`app` on a free port of this machine: its URL and its server."""
    bound = listen(spec)
    server = Server(app, spec)
    task = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        while not server.started:
            assert not task.done(), task.result()
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}", server
    finally:
        server.should_exit = True
        await task
        bound.close()


@contextlib.asynccontextmanager
async def connected(
    url: str, *, receive_buffer: int | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection by the byte, for what well-behaved clients hide or never do; aborted at the end."""
    host, _, port = url.removeprefix("http://").partition(":")
    plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=plain, limit=1024 if receive_buffer else 2**16)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def post(body: object, path: str = "/v1/chat/completions") -> bytes:
    """The bytes of a request with a JSON body."""
    raw = orjson.dumps(body)
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (path.encode(), len(raw)) + raw


async def until(true: Callable[[], Any]) -> None:
    """Wait for something that must come; the test's own time-out is the limit."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def read_response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], list[bytes]]:
    """Status, headers and the pieces of the body: the chunks of a chunked one, else the whole."""
    status = int((await reader.readline()).split()[1])
    headers: dict[str, str] = {}
    while (line := (await reader.readline()).strip()) != b"":
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("transfer-encoding") != "chunked":
        return status, headers, [await reader.readexactly(int(headers["content-length"]))]
    pieces = []
    while size := int(await reader.readline(), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return status, headers, pieces
