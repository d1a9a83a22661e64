from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from fakes.engine import FakeEngine, FakeProcess, Script, lane_info
from tiergate.engine import EngineDead, EngineError, SamplingParams, messages
from tiergate.tiers.engine_client import AnswerPart, Channel, EngineClient, Process, restart_delay

LANES = {"fast": lane_info("fast", vocab=100, eos=(2,))}


def scripted(request: messages.Generate) -> Script:
    """The prompt's first token says how many to generate; 99 hangs."""
    first = request.token_ids[0]
    return Script(ids=range(first if first < 99 else 3), hangs=first == 99)


def generate(client: EngineClient, length: int) -> Channel:
    command = messages.Generate(
        id=client.new_id(), lane="fast", token_ids=[length], sampling=SamplingParams(max_tokens=50)
    )
    return client.generate(command)


async def everything(channel: Channel) -> list[AnswerPart]:
    replies: list[AnswerPart] = []
    while not replies or isinstance(replies[-1], messages.Tokens):
        replies += await channel.take()
    return replies


@asynccontextmanager
async def client(**options: object) -> AsyncIterator[EngineClient]:
    made = EngineClient(**options)  # type: ignore[arg-type]
    made.open()
    try:
        yield made
    finally:
        await made.close()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came about")


async def test_requests_get_their_own_replies_in_order() -> None:
    with FakeEngine(LANES, scripted) as engine:
        async with client(address=engine.address) as one, client(address=engine.address) as two:
            assert await one.wait_ready(5)
            assert await two.wait_ready(5)
            assert one.lanes == LANES
            channels = [generate(who, length) for length in range(1, 20) for who in (one, two)]
            for index, channel in enumerate(channels):
                replies = await everything(channel)
                length = index // 2 + 1
                ids = [id for reply in replies if isinstance(reply, messages.Tokens) for id in reply.ids]
                assert ids == list(range(length))
                assert isinstance(replies[-1], messages.Finished)
                assert replies[-1].completion_tokens == length


async def test_aborts() -> None:
    with FakeEngine(LANES, scripted) as engine:
        async with client(address=engine.address) as made:
            assert await made.wait_ready(5)
            channel = generate(made, 99)
            await channel.take()
            made.abort(channel.id)
            made.abort("unknown")
            last = (await everything(channel))[-1]
            assert isinstance(last, messages.Finished)
            assert last.reason == "abort"
            made.abort(channel.id)
            assert engine.aborted == [channel.id]


async def test_a_reader_may_wait_for_many_replies_or_the_end() -> None:
    with FakeEngine(LANES, scripted) as engine:
        async with client(address=engine.address) as made:
            assert await made.wait_ready(5)
            channel = generate(made, 40)
            first = await channel.take(30)
            assert 30 <= len(first) <= 41
            rest = await channel.take(30) if len(first) <= 40 else []
            assert len(first) + len(rest) == 41
            assert isinstance([*first, *rest][-1], messages.Finished)
            hanging = generate(made, 99)
            waiting = asyncio.create_task(hanging.take(4096))
            await until(lambda: engine.open_requests > 0)
            engine.crash()
            assert all(isinstance(reply, messages.Tokens) for reply in await waiting)
            with pytest.raises(EngineDead):
                await hanging.take(4096)


async def test_what_nobody_reads_is_bounded() -> None:
    with FakeEngine(LANES, lambda request: Script(ids=range(50))) as engine:
        async with client(address=engine.address, queue_limit=8) as made:
            assert await made.wait_ready(5)
            slow = generate(made, 1)
            await until(lambda: not engine.open_requests and bool(engine.requests))
            assert await made.stats() != {}, "the client has read everything by now"
            assert len(await slow.take()) == 8
            with pytest.raises(EngineDead, match="behind"):
                await slow.take()


async def test_a_lost_connection_ends_open_requests_at_once_and_is_made_again() -> None:
    folder = tempfile.TemporaryDirectory()
    address = f"ipc://{folder.name}/engine"
    first = FakeEngine(LANES, scripted, address=address).start()
    async with client(address=address, delay=0.01) as made:
        assert await made.wait_ready(5)
        channels = [generate(made, 99) for _ in range(3)]
        for channel in channels:
            await channel.take()
        first.crash()
        for channel in channels:
            with pytest.raises(EngineDead):
                await everything(channel)
        assert not made.ready
        assert made.lanes == {}
        with pytest.raises(EngineDead):
            generate(made, 1)
        with FakeEngine(LANES, scripted, address=address):
            assert await made.wait_ready(5)
            assert len(await everything(generate(made, 1))) == 2
    folder.cleanup()


async def test_a_launched_engine_is_started_again() -> None:
    engines: list[FakeEngine] = []

    def launch() -> Process:
        engines.append(FakeEngine(LANES, scripted))
        return FakeProcess(engines[-1].start())

    async with client(launch=launch, delay=0.01) as made:
        for number in range(1, 4):
            assert await made.wait_ready(5)
            assert made.pid == os.getpid()
            assert len(engines) == number
            assert len(await everything(generate(made, 1))) == 2
            open_request = generate(made, 99)
            await open_request.take()
            engines[-1].crash()
            with pytest.raises(EngineDead):
                await everything(open_request)
        assert await made.wait_ready(5)
    assert not engines[-1].alive, "closing the client stops its engine"


async def test_a_launch_that_fails_is_tried_again() -> None:
    engines: list[FakeEngine] = []
    attempts = 0

    def launch() -> Process:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise EngineError("no")
        engines.append(FakeEngine(LANES, scripted))
        return FakeProcess(engines[-1].start())

    async with client(launch=launch, delay=0.01) as made:
        assert await made.wait_ready(5)
    assert attempts == 3


@dataclass
class Subprocess:
    """A process that binds nothing, like an engine that dies while it loads."""

    process: subprocess.Popen[bytes]
    address: str = "ipc:///nowhere/at-all"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.poll()

    def alive(self) -> bool:
        return self.returncode is None

    def refusal(self) -> str:
        return "no such weights" if self.returncode == 2 else ""

    def stop(self, timeout: float = 5.0) -> None:
        self.process.kill()
        self.process.wait()


async def test_a_process_that_dies_before_it_binds_is_noticed() -> None:
    started: list[Subprocess] = []

    def launch() -> Process:
        started.append(Subprocess(subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(7)"])))
        return started[-1]

    async with client(launch=launch, delay=0.01, heartbeat=60.0) as made:
        await until(lambda: len(started) >= 2)
        await until(lambda: "status 7" in made.reason)
    assert all(one.returncode is not None for one in started)


async def test_an_engine_that_refuses_to_start_is_not_tried_again() -> None:
    started: list[Subprocess] = []

    def launch() -> Process:
        started.append(Subprocess(subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(2)"])))
        return started[-1]

    async with client(launch=launch, delay=0.01, heartbeat=0.05) as made:
        await until(lambda: made.failure != "")
        assert made.failure == made.reason == "the engine cannot start: no such weights"
        await asyncio.sleep(0.1)
        assert len(started) == 1


async def test_an_engine_that_has_served_is_tried_again_whatever_it_says() -> None:
    engines: list[FakeEngine] = []
    refusals = 0

    def launch() -> Process:
        nonlocal refusals
        if engines and refusals < 2:
            refusals += 1
            return Subprocess(subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(2)"]))
        engines.append(FakeEngine(LANES, scripted))
        return FakeProcess(engines[-1].start())

    async with client(launch=launch, delay=0.01) as made:
        assert await made.wait_ready(5)
        engines[0].crash()
        await until(lambda: not made.ready)
        assert await made.wait_ready(10)
        assert made.failure == ""
    assert (refusals, len(engines)) == (2, 2)


async def test_the_word_of_another_engine_counts_for_nothing() -> None:
    with FakeEngine(LANES, scripted) as other:

        def launch() -> Process:
            ours = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(2)"], stdin=-1)
            launched.append(ours)
            return Subprocess(ours, other.address)

        launched: list[subprocess.Popen[bytes]] = []
        async with client(launch=launch, heartbeat=0.05) as made:
            await until(lambda: "another engine" in made.reason)
            assert not made.ready
            stdin = launched[0].stdin
            assert stdin is not None
            stdin.close()
            await until(lambda: made.failure != "")


async def test_an_address_where_nobody_answers_is_named() -> None:
    folder = tempfile.TemporaryDirectory()
    address = f"ipc://{folder.name}/engine"
    async with client(address=address, heartbeat=0.05) as made:
        await until(lambda: made.reason == f"nobody answers at {address}")
        with FakeEngine(LANES, scripted, address=address, load_seconds=1.0):
            await until(lambda: made.reason == "the engine is starting")
            assert await made.wait_ready(5)
            assert made.reason == ""
    folder.cleanup()


async def test_closing_while_it_starts_leaves_no_process() -> None:
    began, go_on = threading.Event(), threading.Event()
    engine = FakeEngine(LANES, scripted)

    def launch() -> Process:
        began.set()
        go_on.wait(5)
        return FakeProcess(engine.start())

    made = EngineClient(launch=launch)
    made.open()
    await asyncio.to_thread(began.wait, 5)
    closing = asyncio.create_task(made.close())
    await asyncio.sleep(0.01)
    go_on.set()
    await closing
    assert not engine.alive


async def test_waiting_for_an_engine_is_bounded() -> None:
    with FakeEngine(LANES, scripted, load_seconds=0.3) as engine:
        async with client(address=engine.address) as made:
            assert not await made.wait_ready(0.01)
            with pytest.raises(EngineDead, match="starting"):
                generate(made, 1)
            assert await made.stats() == {}
            assert await made.wait_ready(5)
            stats, again = await asyncio.gather(made.stats(), made.stats())
            assert stats == again
            assert stats["fast"].blocks == 128


async def test_it_says_hello_again_and_again() -> None:
    with FakeEngine(LANES, scripted) as engine:
        async with client(address=engine.address, heartbeat=0.01) as made:
            assert await made.wait_ready(5)
            await until(lambda: engine.hellos > 3)


async def test_an_engine_that_has_forgotten_its_client_has_forgotten_its_requests() -> None:
    with FakeEngine(LANES, scripted) as engine:
        async with client(address=engine.address, heartbeat=0.5) as made:
            assert await made.wait_ready(5)
            channel = generate(made, 99)
            await channel.take()
            engine.known.clear()
            with pytest.raises(EngineDead, match="given this gateway up"):
                await everything(channel)
            assert len(await everything(generate(made, 1))) == 2


async def test_a_process_that_stood_still_gives_its_requests_up() -> None:
    with FakeEngine(LANES, scripted) as engine:
        async with client(address=engine.address, heartbeat=0.05) as made:
            assert await made.wait_ready(5)
            channel = generate(made, 99)
            await channel.take()
            await asyncio.sleep(0.02)
            time.sleep(0.5)  # noqa: ASYNC251 (the point is to block)
            with pytest.raises(EngineDead, match="stood still"):
                await everything(channel)
            await until(lambda: engine.aborted == [channel.id])


async def test_an_engine_that_hangs_is_lost() -> None:
    with FakeEngine(LANES, scripted) as engine:
        async with client(address=engine.address, heartbeat=0.05, unanswered=4, delay=0.01) as made:
            assert await made.wait_ready(5)
            channel = generate(made, 99)
            await channel.take()
            engine.frozen = True
            with pytest.raises(EngineDead, match="does not answer"):
                await everything(channel)
            assert not made.ready
            engine.frozen = False
            assert await made.wait_ready(5)
            assert len(await everything(generate(made, 1))) == 2


async def test_frames_that_are_no_messages_cost_the_connection_only() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    port = router.bind_to_random_port("tcp://127.0.0.1")

    def answer() -> None:
        identity, _ = router.recv_multipart()
        router.send_multipart((identity, b"\xc1 not msgpack"))

    thread = threading.Thread(target=answer)
    thread.start()
    async with client(address=f"tcp://127.0.0.1:{port}", delay=30.0) as made:
        await until(lambda: "protocol" in made.reason)
        assert not made.ready
    thread.join()
    router.close()
    context.term()


@given(st.floats(0.01, 10), st.integers(1, 10_000))
def test_restarts_slow_down_up_to_a_bound(base: float, deaths: int) -> None:
    delay = restart_delay(base, deaths)
    assert min(base, 30.0) <= delay <= 30.0
    assert restart_delay(base, deaths + 1) >= delay
