"""The short way to the connection says what the long one would."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from fakes.asgi import connected, post, read_response, served, until
from fakes.tier import FakeTier
from tiergate.gateway.direct import CLOSE, Direct
from tiergate.tiers import Finish, Text, Usage

from .conftest import CHAT, Build, ask

END = Finish(reason="stop", usage=Usage())
ORIGIN = "https://page.example"


class Connection:
    """What a cycle needs of its transport and its flow control."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False
        self.write_paused = False
        self.reading = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def resume_reading(self) -> None:
        self.reading = True


def cycle(connection: Any, *, keep_alive: bool = True) -> RequestResponseCycle:
    return RequestResponseCycle(
        scope={"method": "POST"},  # type: ignore[typeddict-item]
        transport=connection,
        flow=connection,
        logger=None,  # type: ignore[arg-type]
        access_logger=None,  # type: ignore[arg-type]
        access_log=False,
        default_headers=[(b"date", b"today")],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: None,
    )


def lines(written: bytes) -> tuple[bytes, set[bytes], bytes]:
    head, _, body = written.partition(b"\r\n\r\n")
    first, *rest = head.split(b"\r\n")
    return first, set(rest), body


@pytest.mark.parametrize("keep_alive", [True, False])
@pytest.mark.parametrize("body", [b"{}", b""])
@pytest.mark.parametrize("closing", [False, True])
async def test_a_whole_response_is_the_servers_own(keep_alive: bool, body: bytes, closing: bool) -> None:
    headers = ((b"x-request-id", b"req_1"), (b"content-type", b"application/json"), *[CLOSE][: int(closing)])
    short, long = Connection(), Connection()
    first, second = cycle(short, keep_alive=keep_alive), cycle(long, keep_alive=keep_alive)
    assert Direct(first).whole(503, headers, body)
    length = (b"content-length", b"%d" % len(body))
    await second.send({"type": "http.response.start", "status": 503, "headers": [*headers, length]})
    await second.send({"type": "http.response.body", "body": body, "more_body": False})
    assert lines(short.written) == lines(long.written)
    assert short.written.count(b"connection:") == short.closed
    assert short.closed == long.closed == (closing or not keep_alive)
    assert (first.response_started, first.response_complete) == (True, True)


async def test_a_part_of_a_stream_is_the_servers_own() -> None:
    short, long = Connection(), Connection()
    first, second = cycle(short), cycle(long)
    direct = Direct(first)
    assert not direct.ready, "it has not begun"
    for one in (first, second):
        await one.send({"type": "http.response.start", "status": 200, "headers": []})
    assert direct.ready
    direct.write(b"data: 1\n\n")
    await second.send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
    assert short.written == long.written


async def test_nothing_is_written_to_a_client_that_is_behind_or_gone() -> None:
    for state in ("behind", "gone", "answered"):
        connection = Connection()
        made = cycle(connection)
        connection.write_paused = state == "behind"
        made.disconnected = state == "gone"
        made.response_started = state == "answered"
        assert not Direct(made).whole(200, (), b"x")
        assert not Direct(made).ready
        assert connection.written == b""


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb", b"\x00", b"\x7f"])
async def test_no_header_can_end_its_line(value: bytes) -> None:
    connection = Connection()
    with pytest.raises(RuntimeError):
        Direct(cycle(connection)).whole(200, ((b"x-a", value),), b"")
    assert connection.written == b""


async def test_a_body_is_given_out_only_when_all_of_it_is_there() -> None:
    made = cycle(Connection())
    direct = Direct(made)
    made.body += b"abc"
    assert direct.body() is None
    made.more_body = False
    assert direct.body() == b"abc"
    made.body += b"abc"
    made.waiting_for_100_continue = True
    assert direct.body() is None
    made.waiting_for_100_continue, made.disconnected = False, True
    assert direct.body() is None


async def test_leaving_is_told_once_it_happens_and_until_the_response_is_complete() -> None:
    calls: list[str] = []
    connection = Connection()
    made = cycle(connection)
    direct = Direct(made)
    direct.gone()
    direct.when_gone(lambda: calls.append("first"))
    assert connection.reading, "or it would not be noticed"
    direct.when_gone(lambda: calls.append("second"))
    direct.gone()
    assert calls == ["second"]
    made.response_complete = True
    direct.gone()
    assert calls == ["second"]
    late = cycle(Connection())
    late.disconnected = True
    Direct(late).when_gone(lambda: calls.append("late"))
    assert calls == ["second", "late"]


async def test_a_client_that_leaves_behind_a_large_body_is_noticed(house: Build) -> None:
    home = house(FakeTier("fast", lambda *_: [Text("one"), asyncio.Event(), END]))
    async with served(home.app, home.settings.server) as (url, _):
        async with connected(url) as (_, writer):
            writer.write(post(ask(user="x" * 150_000)))
            await until(lambda: home.fast.running)
        await until(lambda: not home.app.service.metrics.active)
    assert home.fast.closed == 1


async def test_pages_of_allowed_origins_may_read_what_goes_the_short_way(house: Build) -> None:
    home = house(cors_origins=[ORIGIN])
    async with served(home.app, home.settings.server) as (url, _), httpx.AsyncClient(base_url=url) as client:
        for body in (ask(), ask(stream=True), {}):
            response = await client.post(CHAT, json=body, headers={"origin": ORIGIN})
            assert response.headers["access-control-allow-origin"] == ORIGIN


async def test_a_body_just_too_large_is_refused_however_it_comes(house: Build) -> None:
    request = post(ask())
    size = len(request.partition(b"\r\n\r\n")[2])
    for limit, status in ((size, 200), (size - 1, 413)):
        home = house(body_limit=limit)
        async with served(home.app, home.settings.server) as (url, _), connected(url) as (reader, writer):
            writer.write(request)
            assert (await read_response(reader))[0] == status
