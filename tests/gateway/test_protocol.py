"""What a connection may send, and what becomes of it when it sends something else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fakes.asgi import connected, post, read_response, served, until
from fakes.tier import FakeTier
from tiergate.gateway import protocol
from tiergate.gateway.protocol import HEAD_BYTES, HEAD_FIELDS
from tiergate.tiers import Finish, Text, Usage

from .conftest import CHAT, Build, House, ask

END = Finish(reason="stop", usage=Usage())
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
HEALTH = GET + b"\r\n"


@asynccontextmanager
async def dialled(home: House) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with served(home.app, home.settings.server) as (url, _), connected(url) as (reader, writer):
        yield reader, writer


async def refused(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and code of an error in the usual shape, behind which the connection ends."""
    status, headers, pieces = await read_response(reader)
    assert headers["content-type"] == "application/json"
    assert headers["connection"] == "close"
    assert headers["x-request-id"].startswith("req_")
    error = json.loads(b"".join(pieces))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert await reader.read() == b""
    return status, error["code"]


def chunked(*pieces: bytes, trailers: bytes = b"") -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % CHAT.encode()
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n" + trailers + b"\r\n"


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"\x16\x03\x01 hello\r\n\r\n", 400, "invalid_http"),
        (GET + b"X-A : b\r\n\r\n", 400, "invalid_http"),
        (GET + b"Content-Length: -5\r\n\r\n", 400, "invalid_http"),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "invalid_http"),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "invalid_host"),
        (GET + b"Host: other\r\n\r\n", 400, "invalid_host"),
        (GET + b"X-A: " + b"a" * HEAD_BYTES + b"\r\n\r\n", 431, "headers_too_large"),
        (GET + b"X-A: " + b"a" * 10 * HEAD_BYTES, 431, "headers_too_large"),
        (GET + b"b" * 10 * HEAD_BYTES, 431, "headers_too_large"),
        (b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431, "headers_too_large"),
        (b"GET /" + b"a" * 10 * HEAD_BYTES, 431, "headers_too_large"),
        (GET + b"X: a\r\n" * HEAD_FIELDS + b"\r\n", 431, "headers_too_large"),
        (GET + b"X: a\r\n" * 50_000, 431, "headers_too_large"),
        (b"\r\n" * 10 * HEAD_BYTES, 431, "headers_too_large"),
        (chunked(b"{", trailers=b"X: " + b"a" * 10 * HEAD_BYTES + b"\r\n"), 431, "headers_too_large"),
        (chunked(b"{", trailers=b"X: a\r\n" * 50_000), 431, "headers_too_large"),
        (chunked(b"{")[:-5] + b"5;" + b"x" * 10 * HEAD_BYTES, 431, "headers_too_large"),
        (chunked(b"{")[:-5] + b"zz\r\n", 400, "invalid_http"),
    ],
    ids=range(18),
)
async def test_what_no_client_sends_is_refused_in_the_usual_shape(
    house: Build, raw: bytes, status: int, code: str
) -> None:
    home = house()
    async with dialled(home) as (reader, writer):
        writer.write(raw)
        assert await refused(reader) == (status, code)
        await until(lambda: not home.app.service.reading)
    assert home.fast.requests == []


async def test_the_bounds_are_each_request_s_own(house: Build) -> None:
    """As much as fits, again and again on one connection, in one piece or byte by byte."""
    many = GET + b"X: a\r\n" * (HEAD_FIELDS - 1) + b"\r\n"
    long = GET + b"X: " + b"a" * (HEAD_BYTES - 100) + b"\r\n\r\n"
    large = post(ask("word " * 60_000))
    home = house(FakeTier("fast", context=10**6))
    async with dialled(home) as (reader, writer):
        for raw in (many, long, large, many, long, large, chunked(*[b" "] * 30_000, json.dumps(ask()).encode())):
            writer.write(raw)
            assert (await read_response(reader))[0] == 200
        for place in range(len(HEALTH)):
            writer.write(HEALTH[place : place + 1])
            await writer.drain()
            await asyncio.sleep(0)
        assert (await read_response(reader))[0] == 200
        writer.write(many[:-2] + b"X: a\r\n\r\n")
        assert await refused(reader) == (431, "headers_too_large")


async def test_fields_behind_a_body_mean_nothing(house: Build) -> None:
    home = house()
    async with dialled(home) as (reader, writer):
        writer.write(chunked(json.dumps(ask()).encode(), trailers=b"Content-Encoding: gzip\r\nHost: b\r\n"))
        assert (await read_response(reader))[0] == 200


async def test_http_1_0_needs_no_host(house: Build) -> None:
    async with dialled(house()) as (reader, writer):
        writer.write(b"GET /health HTTP/1.0\r\n\r\n")
        assert (await read_response(reader))[0] == 200
        assert await reader.read() == b""


@pytest.mark.parametrize("stream", [False, True])
async def test_http_1_0_knows_no_chunks(house: Build, stream: bool) -> None:
    async with dialled(house()) as (reader, writer):
        writer.write(post(ask(stream=stream)).replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head
    assert b"transfer-encoding" not in head
    if stream:
        assert b"content-length" not in head
        lines = body.decode().split("\n\n")
        assert all(line.startswith("data: {") for line in lines[:-2])
        assert lines[-2:] == ["data: [DONE]", ""]
    else:
        assert json.loads(body)["choices"][0]["message"]["content"] == "Hello there, friend."


@pytest.mark.parametrize("pieces", [1, 2, 50])
@pytest.mark.parametrize("wish", [b"h2c", b"websocket"])
async def test_a_wish_for_another_protocol_is_passed_over(house: Build, wish: bytes, pieces: int) -> None:
    home = house()
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\nHTTP2-Settings: AAEAAEAA\r\n" % wish
    requests = (
        (post(ask(stream=True)), 200),
        (chunked(json.dumps(ask()).encode(), trailers=b"X: a\r\n"), 200),
        (post({}), 400),
        (HEALTH, 200),
        (post(ask()).replace(b"HTTP/1.1", b"HTTP/1.0"), 200),
    )
    async with dialled(home) as (reader, writer):
        for raw, status in requests:
            raw = raw.replace(b"Host:", upgrade + b"Host:", 1)
            size = -(-len(raw) // pieces)
            for start in range(0, len(raw), size):
                writer.write(raw[start : start + size])
                await asyncio.sleep(0.001)
            assert (await read_response(reader))[0] == status
        assert await reader.read() == b""
    assert len(home.fast.requests) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_second_request_before_the_first_answer_ends_the_connection_behind_it(
    house: Build, stream: bool
) -> None:
    gate = asyncio.Event()
    home = house(FakeTier("fast", lambda *_: [Text("one"), gate, END]))
    async with dialled(home) as (reader, writer):
        writer.write(post(ask(stream=stream)))
        await until(lambda: home.fast.running)
        writer.write(post(ask()) * 2)
        await asyncio.sleep(0.05)
        writer.write(post(ask()))
        await asyncio.sleep(0.05)
        gate.set()
        status, _, pieces = await read_response(reader)
        assert status == 200
        assert b"one" in b"".join(pieces)
        assert await reader.read() == b""
    assert len(home.fast.requests) == 1


async def test_requests_sent_together_get_the_first_answer_and_the_word_close(house: Build) -> None:
    home = house()
    async with dialled(home) as (reader, writer):
        writer.write(post(ask()) * 3)
        status, headers, _ = await read_response(reader)
        assert (status, headers["connection"]) == (200, "close")
        assert await reader.read() == b""
    assert len(home.fast.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("more", [HEALTH, post(ask()), b"\x00\xff" * 200_000])
async def test_a_client_that_sends_more_and_leaves_is_noticed(
    house: Build, stream: bool, more: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def endless(*_: Any) -> Any:
        while True:
            yield Text("word ")
            yield 0.002

    home = house(FakeTier("fast", endless))
    async with served(home.app, home.settings.server) as (url, _):
        async with connected(url) as (_, writer):
            writer.write(post(ask(stream=stream)))
            await until(lambda: home.fast.running)
            writer.write(more)
            await writer.drain()
        await until(lambda: not home.app.service.metrics.active)
        balance = await home.balance()
    (record,) = (record for record in caplog.records if record.name == "tiergate.request")
    assert record.facts["status"] == 499  # type: ignore[attr-defined]
    assert record.facts["error"] == "client_closed_request"  # type: ignore[attr-defined]
    assert record.levelname == "INFO"
    assert (home.fast.running, home.fast.closed, balance.open_grants, balance.settled_grants) == (0, 1, 0, 1)


@pytest.mark.parametrize("pieces", [1, 3])
async def test_a_body_that_stands_still_is_given_up(house: Build, pieces: int) -> None:
    home = house(body_wait=0.2)
    raw = post(ask())
    async with dialled(home) as (reader, writer):
        for place in range(pieces):
            writer.write(raw[-40 + 10 * place : -30 + 10 * place] if place else raw[:-40])
            await asyncio.sleep(0.05)
        assert await refused(reader) == (408, "request_timeout")
        assert not home.app.service.reading
    assert home.fast.requests == []


async def test_a_body_that_goes_on_may_take_its_time(house: Build) -> None:
    home = house(body_wait=0.5)
    raw = post(ask())
    async with dialled(home) as (reader, writer):
        writer.write(raw[:-30])
        for place in range(30):
            await asyncio.sleep(0.04)
            writer.write(raw[len(raw) - 30 + place :][:1])
        assert (await read_response(reader))[0] == 200


@pytest.mark.parametrize("sent", [b"", b"G", GET])
async def test_a_head_that_does_not_end_is_given_up(house: Build, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)
    async with dialled(house()) as (reader, writer):
        writer.write(HEALTH)
        assert (await read_response(reader))[0] == 200
        if sent:
            writer.write(sent)
            assert await refused(reader) == (408, "request_timeout")
        else:
            await asyncio.sleep(0.2)
            writer.write(HEALTH)
            assert (await read_response(reader))[0] == 200


async def test_draining_waits_for_no_body(house: Build, caplog: pytest.LogCaptureFixture) -> None:
    home = house()
    async with served(home.app, home.settings.server) as (url, server), connected(url) as (reader, writer):
        writer.write(post(ask())[:-10])
        await until(lambda: home.app.service.reading)
        async with connected(url) as (_, other):
            other.write(GET)
            draining = asyncio.create_task(server.drain())
            assert await refused(reader) == (503, "shutting_down")
            await draining
        await until(lambda: not server.server_state.tasks)
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def failing(error: BaseException) -> Callable[..., Any]:
    async def app(*_: Any) -> None:
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(RuntimeError("secret"), 500, None), (asyncio.CancelledError("secret"), 503, "shutting_down")],
)
async def test_what_nobody_caught_is_answered_in_the_usual_shape(
    house: Build, error: BaseException, status: int, code: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = house()
    monkeypatch.setattr(home.app, "_chat", failing(error))
    async with dialled(home) as (reader, writer):
        writer.write(post(ask()))
        assert await refused(reader) == (status, code)
