"""The gateway on a real socket: framing to the byte, clients that leave, clients that do not read, draining."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from fakes.asgi import connected, post, read_response, served, until
from fakes.tier import FakeTier, Script, say
from tiergate.tiers import Finish, Text, Usage

from .conftest import CHAT, Build, House, ask
from .test_wire_openai_answer import unframe

END = Finish(reason="stop", usage=Usage())


async def books(house: House) -> tuple[int, int, int]:
    """Open grants, settled grants, tokens spent."""
    balance = await house.balance()
    return balance.open_grants, balance.settled_grants, balance.spent


def gated(gate: asyncio.Event) -> Script:
    return lambda *_: [Text("one"), gate, Text(" two"), END]


async def test_the_bytes_of_a_stream(house: Build) -> None:
    home = house()
    async with served(home.app, home.settings.server) as (url, _), connected(url) as (reader, writer):
        for _ in range(2):  # the connection stays open for a second request
            writer.write(post(ask(stream=True, stream_options={"include_usage": True})))
            status, headers, pieces = await read_response(reader)
            assert status == 200
            assert headers["content-type"] == "text/event-stream"
            assert headers["cache-control"] == "no-cache"
            assert headers["x-accel-buffering"] == "no"
            assert "content-length" not in headers
            chunks = unframe(b"".join(pieces))
            texts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks[:-2]]
            assert texts == ["", "Hello", " there,", " friend."]
            assert chunks[-1]["usage"]["completion_tokens"] == 3
            # Events that were there together left in one write, each an event of its own.
            assert len(pieces) == 2


async def test_the_official_client_streams_as_it_comes(house: Build) -> None:
    gate = asyncio.Event()
    home = house(FakeTier("fast", gated(gate)))
    async with (
        served(home.app, home.settings.server) as (url, _),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(
            model="fast", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        seen = []
        async for chunk in stream:
            seen.append(chunk.choices[0].delta.content)
            if seen[-1] == "one":
                gate.set()
    assert seen == ["", "one", " two", None]


async def test_silence_is_filled_with_comments(house: Build) -> None:
    gate, first = asyncio.Event(), asyncio.Event()
    home = house(FakeTier("fast", lambda *_: [first, Text("one"), gate, END]), keep_alive=0.05)
    async with (
        served(home.app, home.settings.server) as (url, _),
        httpx.AsyncClient(base_url=url) as client,
        client.stream("POST", CHAT, json=ask(stream=True)) as response,
    ):
        lines = aiter(response.aiter_lines())
        kept = [line async for line in _comments(lines, first, 2)]
        kept += [line async for line in _comments(lines, gate, 2)]
        rest = [line async for line in lines]
    assert kept == [": keep-alive"] * len(kept)
    assert len(kept) >= 4
    assert rest[-2:] == ["data: [DONE]", ""]


async def _comments(lines: Any, gate: asyncio.Event, count: int) -> Any:
    """The next comments; the gate is opened after `count` of them."""
    async for line in lines:
        if line.startswith(":"):
            yield line
            count -= 1
            if not count:
                gate.set()
                return


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choices", [1, 3])
async def test_a_client_that_leaves_ends_its_answer(house: Build, stream: bool, choices: int) -> None:
    gate = asyncio.Event()
    home = house(FakeTier("fast", gated(gate)))
    async with served(home.app, home.settings.server) as (url, _):
        async with connected(url) as (reader, writer):
            writer.write(post(ask(stream=stream, n=choices)))
            if stream:
                await reader.readuntil(b'"one"')
            await until(lambda: home.fast.running == choices)
        await until(lambda: not home.app.service.metrics.active)
        assert home.fast.running == 0
        assert home.fast.closed == choices
        assert await books(home) == (0, 1, 2 + choices)
        assert not home.app.service.running


async def test_a_client_that_leaves_while_waiting_for_the_first_piece(house: Build) -> None:
    home = house(FakeTier("fast", lambda *_: [asyncio.Event(), END]))
    async with served(home.app, home.settings.server) as (url, _):
        async with connected(url) as (_, writer):
            writer.write(post(ask(stream=True)))
            await until(lambda: home.fast.running)
        await until(lambda: not home.app.service.metrics.active)
        assert await books(home) == (0, 1, 2)


async def test_a_client_that_leaves_in_the_middle_of_its_body(house: Build) -> None:
    home = house()
    async with served(home.app, home.settings.server) as (url, _):
        async with connected(url) as (_, writer):
            writer.write(post(ask())[:-10])
            await until(lambda: home.app.service.reading)
            assert not home.app.service.metrics.active
        await until(lambda: not home.app.service.reading)
        assert await books(home) == (0, 0, 0)


@pytest.mark.parametrize("limits", [{"stream_buffer": 64, "stall": 60.0}, {"stream_buffer": 10**6, "stall": 0.2}])
async def test_a_client_that_does_not_read_is_dropped_alone(house: Build, limits: dict[str, Any]) -> None:
    """Either its buffer is full, or one write has waited too long."""

    def flood(*_: Any) -> Any:
        while True:
            yield Text("word " * 40)
            yield 0.0

    home = house(FakeTier("fast", flood), FakeTier("deep", say("all is well", delay=0.01)), **limits)
    async with served(home.app, home.settings.server) as (url, _), httpx.AsyncClient(base_url=url) as client:
        async with connected(url, receive_buffer=4096) as (_, writer):
            writer.write(post(ask(stream=True)))
            await until(lambda: home.fast.running)
            while home.fast.running:
                other = await client.post(CHAT, json=ask(model="deep", stream=True))
                assert "[DONE]" in other.text
        await until(lambda: not home.app.service.metrics.active)
        usages = [answer.usage for answer in (*home.fast.answers, *home.deep.answers)]
        spent = sum(usage.prompt_tokens + usage.completion_tokens for usage in usages)
        assert await books(home) == (0, len(usages), spent)


async def test_a_body_that_is_too_large_is_answered_while_it_is_still_being_sent(house: Build) -> None:
    home = house()
    async with served(home.app, home.settings.server) as (url, _), httpx.AsyncClient(base_url=url) as client:
        response = await client.post(CHAT, content=b"x" * 10_000_000, headers={"content-type": "application/json"})
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"
        assert (await client.post(CHAT, json=ask())).status_code == 200


async def test_draining_lets_running_answers_finish_and_takes_no_new_ones(house: Build) -> None:
    gate = asyncio.Event()
    home = house(FakeTier("fast", gated(gate)))
    async with served(home.app, home.settings.server) as (url, server), httpx.AsyncClient(base_url=url) as client:
        running = asyncio.create_task(client.post(CHAT, json=ask(stream=True)))
        await until(lambda: home.fast.running)
        draining = asyncio.create_task(server.drain())
        await until(lambda: home.app.service.draining)
        refused = await client.post(CHAT, json=ask())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["connection"] == "close"
        assert not server.should_exit
        gate.set()
        assert (await running).text.endswith("data: [DONE]\n\n")
        await draining
        assert server.should_exit


async def test_what_does_not_finish_in_time_ends_with_an_error_event(house: Build) -> None:
    home = house(FakeTier("fast", lambda *_: [Text("one"), asyncio.Event(), END]), drain=0.05)
    async with served(home.app, home.settings.server) as (url, server), httpx.AsyncClient(base_url=url) as client:
        stream = asyncio.create_task(client.post(CHAT, json=ask(stream=True)))
        whole = asyncio.create_task(client.post(CHAT, json=ask()))
        await until(lambda: home.fast.running == 2)
        await server.drain()
        *_, last, rest = (await stream).text.split("\n\n")
        assert rest == ""
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert ((await whole).status_code, (await whole).json()["error"]["code"]) == (503, "shutting_down")
        assert await books(home) == (0, 2, 6)


async def test_many_streams_a_third_of_them_cut(house: Build) -> None:
    home = house(FakeTier("fast", say(" ".join(f"word{place}" for place in range(30)), delay=0.001)))
    alone = " ".join(f"word{place}" for place in range(30))
    limits = httpx.Limits(max_connections=64)
    async with (
        served(home.app, home.settings.server) as (url, _),
        httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client,
    ):

        async def one(place: int) -> str:
            text = ""
            async with client.stream("POST", CHAT, json=ask(stream=True)) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                    if place % 3 == 0 and text.count(" ") == 5:
                        break
            return text

        texts = await asyncio.gather(*(one(place) for place in range(48)))
        await until(lambda: not home.app.service.metrics.active)
        for place, text in enumerate(texts):
            assert text == (alone if place % 3 else text)
            assert alone.startswith(text)
        balance = await home.balance()
    assert (balance.open_grants, balance.reserved, balance.settled_grants) == (0, 0, 48)
    assert balance.spent == sum(
        answer.usage.prompt_tokens + answer.usage.completion_tokens for answer in home.fast.answers
    )
    assert home.fast.running == 0
