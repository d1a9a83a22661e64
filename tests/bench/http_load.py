"""A load generator that costs little itself: keep-alive connections in plain asyncio, answers parsed by httptools."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httptools

EVENT = b"data: "


@dataclass(frozen=True, slots=True)
class Answer:
    """One response: `events` counts server-sent events, `size` is the body's bytes, `seconds` from request to end."""

    status: int
    events: int
    size: int
    seconds: float


class Connection(asyncio.Protocol):
    """One request at a time, over and over."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._closed = asyncio.get_running_loop().create_future()
        self._parser: Any = None
        self._answer: asyncio.Future[Answer] | None = None
        self._began = 0.0
        self._events = 0
        self._size = 0
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set_result(None)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server hung up"))

    def on_body(self, body: bytes) -> None:
        # An event may begin in one piece and go on in the next; the tail is too short to hold a whole beginning.
        joined = self._tail + body
        self._events += joined.count(EVENT)
        self._tail = joined[1 - len(EVENT) :]
        self._size += len(body)

    def on_message_complete(self) -> None:
        assert self._answer is not None
        if not self._answer.done():
            status = int(self._parser.get_status_code())
            self._answer.set_result(Answer(status, self._events, self._size, time.perf_counter() - self._began))

    async def ask(self, request: bytes) -> Answer:
        self._parser = httptools.HttpResponseParser(self)
        self._events, self._size, self._tail = 0, 0, b""
        self._answer = asyncio.get_running_loop().create_future()
        self._began = time.perf_counter()
        self._transport.write(request)
        return await self._answer

    async def close(self) -> None:
        self._transport.close()
        await self._closed


def post(path: str, body: bytes) -> bytes:
    """The bytes of a POST of JSON, with a key as clients send it."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sk-bench\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def load(
    port: int, requests: Sequence[bytes], *, connections: int, count: int, interval: float = 0.0, spread: float = 0.0
) -> list[Answer]:
    """Send `count` requests over `connections`, each as soon as the one before it on its connection is answered.

    `requests` are taken in turn, over and over. With an `interval`, in seconds, a request starts at most that often,
    all connections together. `spread` is the time over which the first requests of the connections are spread. Raises
    `RuntimeError` for an answer other than 200.
    """
    loop = asyncio.get_running_loop()
    todo = iter(range(count))
    began = loop.time()

    async def work(place: int) -> list[Answer]:
        await asyncio.sleep(spread * place / connections)
        _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
        answers = []
        try:
            for number in todo:
                if interval:
                    await asyncio.sleep(max(began + number * interval - loop.time(), 0.0))
                answers.append(await connection.ask(requests[number % len(requests)]))
                if answers[-1].status != 200:
                    raise RuntimeError(f"status {answers[-1].status}")
        finally:
            await connection.close()
        return answers

    tasks = [asyncio.create_task(work(place)) for place in range(connections)]
    try:
        return [one for answers in await asyncio.gather(*tasks) for one in answers]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
