"""The server's life: where it listens, and how signals end it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from fakes.asgi import served, until
from fakes.tier import FakeTier
from tiergate.budget import StoreUnavailable
from tiergate.gateway.config import ServerSpec
from tiergate.gateway.errors import ConfigError, StartFailed
from tiergate.gateway.server import UNREAD_MS, Server, listen
from tiergate.tiers import Finish, Text, Usage

from .conftest import CHAT, Build, ask


def test_listening() -> None:
    with listen(ServerSpec(port=0)) as bound:
        assert bound.getsockname()[0] == "127.0.0.1"
        assert bound.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNREAD_MS
        with pytest.raises(ConfigError, match="Address already in use"):
            listen(ServerSpec(port=bound.getsockname()[1]))


def test_several_processes_can_share_a_port() -> None:
    spec = ServerSpec(port=0, reuse_port=True)
    with listen(spec) as first, listen(replace(spec, port=first.getsockname()[1])) as second:
        assert first.getsockname() == second.getsockname()


def test_listening_on_a_name_that_is_none() -> None:
    with pytest.raises(ConfigError, match="cannot listen on"):
        listen(ServerSpec(host="256.1.1.1", port=0))


async def test_the_first_signal_drains_and_the_second_ends(house: Build, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    end = Finish(reason="stop", usage=Usage())
    home = house(FakeTier("fast", lambda *_: [Text("one"), asyncio.Event(), end]))
    async with served(home.app, home.settings.server) as (url, server), httpx.AsyncClient(base_url=url) as client:
        running = asyncio.create_task(client.post(CHAT, json=ask()))
        await until(lambda: home.fast.running)
        server.handle_exit(signal.SIGTERM, None)
        await until(lambda: home.app.service.draining)
        assert not server.should_exit
        assert "waiting for 1 request, at most 30 s; once more to stop now" in caplog.text
        server.handle_exit(signal.SIGTERM, None)
        assert server.should_exit
        running.cancel()
        await asyncio.wait((running,))


async def test_a_signal_while_it_opens_ends_it_once_it_can_close(house: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    home = house()
    opening, gate, steps = asyncio.Event(), asyncio.Event(), list[str]()

    @contextlib.asynccontextmanager
    async def slowly() -> AsyncIterator[None]:
        opening.set()
        await gate.wait()
        yield
        steps.append("closed")

    monkeypatch.setattr(home.app, "open", slowly)
    with listen(home.settings.server) as bound:
        server = Server(home.app, home.settings.server)
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        await opening.wait()
        server.handle_exit(signal.SIGTERM, None)
        gate.set()
        await serving
    assert steps == ["closed"]


async def test_what_cannot_be_opened_is_raised(house: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    home = house()

    async def broken() -> None:
        raise StoreUnavailable("the file is no database")

    monkeypatch.setattr(home.ledger, "start", broken)
    with listen(home.settings.server) as bound:
        server = Server(home.app, home.settings.server)
        with pytest.raises(StoreUnavailable, match="no database"):
            await server.serve(sockets=[bound])
        assert not server.started


async def test_an_engine_that_will_never_start_ends_it(house: Build) -> None:
    home = house(FakeTier("fast", ready=False))
    with listen(home.settings.server) as bound:
        server = Server(home.app, home.settings.server)
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        await until(lambda: server.started)
        home.tiers.failure = "the engine cannot start: no such weights"
        with pytest.raises(StartFailed, match="no such weights"):
            await serving
    assert home.tiers.closed


async def test_an_idle_server_ends_at_the_first_signal(house: Build) -> None:
    home = house()
    async with served(home.app, home.settings.server) as (_, server):
        server.handle_exit(signal.SIGINT, None)
        await until(lambda: server.should_exit)
    assert home.tiers.closed


async def test_readiness_is_told_once_the_models_are_there(house: Build, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    home = house(FakeTier("fast", ready=False))
    async with served(home.app, home.settings.server):
        await asyncio.sleep(0.05)
        assert "ready: " not in caplog.text
        home.fast.ready = True
        await until(lambda: "ready: fast, deep" in caplog.text)
