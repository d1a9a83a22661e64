"""The gateway's benchmark counts what it says it counts."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from bench import gateway
from bench.http_load import load, post
from rich.console import Console

from fakes.models import embedded_catalog


async def loaded(answer: list[bytes], **how: Any) -> tuple[list[tuple[int, int, int]], int]:
    """What `load` saw of a server that sends `answer` piece by piece, and how many connections it made."""
    served: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                assert b"authorization: Bearer" in await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(2) == b"{}"
                for piece in answer:
                    writer.write(piece)
                    await asyncio.sleep(0)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        try:
            answers = await load(port, [post("/x", b"{}")], connections=2, count=5, **how)
        finally:
            await asyncio.wait([task for task in served if task])
    return [(one.status, one.events, one.size) for one in answers], len(served)


async def test_events_are_counted_wherever_they_are_cut() -> None:
    body = b"data: {}\n\ndata: {}\n\ndata: [DONE]\n\n"
    chunks = [b"%x\r\n%s\r\n" % (len(body[n : n + 3]), body[n : n + 3]) for n in range(0, len(body), 3)]
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    answers, connections = await loaded([head, *chunks, b"0\r\n\r\n"])
    assert answers == [(200, 3, len(body))] * 5
    assert connections == 2


async def test_requests_can_be_paced() -> None:
    answers, _ = await loaded([b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", b"{}"], interval=0.001)
    assert answers == [(200, 0, 2)] * 5


async def test_a_refused_request_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="429"):
        await loaded([b"HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n"])


@pytest.mark.models
def test_a_small_benchmark_runs() -> None:
    catalog = embedded_catalog()
    plan = gateway.Plan(rounds=1, requests=40, long=8, alone=1, streams=8, paced=4)
    records = gateway.bench(catalog.root, catalog.resolve("smollm2-135m").path, plan, Console(quiet=True))
    assert [(one["contender"], one["what"]) for one in records] == [
        (contender, what) for contender in ("tiergate", "floor") for what in (*gateway.WORKS, "token")
    ]
    assert all(one["rate"] > 0 and one["memory_mb"] > 1 for one in records)
    assert all(one["cpu"] > 0 for one in records if one["what"] != "token")
