from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiergate.gateway.errors import ClientGone, SlowReader
from tiergate.gateway.relay import Relay, count
from tiergate.tiers import Event, Finish, GenerationFailed, Text, Usage
from tiergate.tiers.tier import Sink

END = Finish(reason="stop", usage=Usage())


class Stream:
    """Plays events, waits at gates, breaks; remembers how it was left."""

    def __init__(self, *steps: Event | asyncio.Event | Exception) -> None:
        self.usage = Usage(prompt_tokens=3)
        self.closes = 0
        self.close_gate: asyncio.Event | None = None
        self._play = self._steps(steps)

    async def _steps(self, steps: tuple[Event | asyncio.Event | Exception, ...]) -> AsyncIterator[Event]:
        for step in steps:
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, Exception):
                raise step
            else:
                self.usage += Usage(completion_tokens=1)
                yield step

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._play

    async def __anext__(self) -> Event:
        return await anext(self._play)

    def follow(self, sink: Sink) -> bool:
        return False

    async def aclose(self) -> None:
        if self.close_gate is not None:
            await self.close_gate.wait()
        self.closes += 1


def relay(*streams: Stream, room: int = 100, idle: float | None = None) -> Relay:
    return Relay(streams, room=room, idle=idle)


async def drain(one: Relay) -> list[tuple[int, Event]]:
    gathered = []
    while (batch := await one.take()) is not None:
        gathered += batch
    return gathered


async def test_a_burst_is_one_batch() -> None:
    one = relay(Stream(Text("a"), Text("b"), END))
    assert await one.take() == [(0, Text("a")), (0, Text("b")), (0, END)]
    assert await one.take() is None
    assert (await one.close()).completion_tokens == 3


async def test_choices_are_mixed_but_each_in_order() -> None:
    gate = asyncio.Event()
    one = relay(Stream(Text("a"), gate, Text("b"), END), Stream(Text("c"), END))
    first = await one.take()
    assert first == [(0, Text("a")), (1, Text("c")), (1, END)]
    gate.set()
    assert await drain(one) == [(0, Text("b")), (0, END)]
    await one.close()


async def test_silence_is_told() -> None:
    gate = asyncio.Event()
    one = relay(Stream(gate, END), idle=0.01)
    assert await one.take() == []
    assert await one.take() == []
    gate.set()
    assert await drain(one) == [(0, END)]
    await one.close()


async def test_a_failure_comes_after_what_came_before_it() -> None:
    stream = Stream(Text("a"), GenerationFailed("broken"))
    one = relay(stream)
    assert await one.take() == [(0, Text("a"))]
    with pytest.raises(GenerationFailed, match="broken"):
        await one.take()
    await one.close()
    assert stream.closes == 1


async def test_a_failing_choice_ends_the_others() -> None:
    other = Stream(asyncio.Event())
    one = relay(Stream(GenerationFailed("broken")), other)
    with pytest.raises(GenerationFailed):
        await drain(one)
    await one.close()
    assert other.closes == 1


@pytest.mark.parametrize("steps", [(), (Text("a"),), (Finish(reason="abort", usage=Usage()),)])
async def test_an_answer_without_its_end_is_a_failure(steps: tuple[Event, ...]) -> None:
    one = relay(Stream(*steps))
    with pytest.raises(GenerationFailed):
        await drain(one)
    await one.close()


async def test_abort_drops_what_has_gathered_and_wakes_the_writer() -> None:
    stream = Stream(asyncio.Event())
    one = relay(stream)
    waiting = asyncio.create_task(one.take())
    await asyncio.sleep(0)
    one.abort(ClientGone("gone"))
    one.abort(SlowReader("too late"))
    with pytest.raises(ClientGone):
        await waiting
    usage = await one.close()
    assert stream.closes == 1
    assert usage.prompt_tokens == 3
    with pytest.raises(ClientGone):
        await one.take()


async def test_a_writer_that_does_not_take_loses_its_answer() -> None:
    stream = Stream(*[Text("a")] * 50, END)
    one = relay(stream, room=10)
    await asyncio.sleep(0.01)
    assert stream.closes == 1
    assert len(await one.take() or ()) == 10
    with pytest.raises(SlowReader):
        await one.take()
    await one.close()


async def test_a_writer_that_takes_gets_any_number_of_events() -> None:
    one = relay(Stream(*[Text("a")] * 500, END), room=10)
    assert len(await drain(one)) == 501
    await one.close()


async def test_closing_waits_for_a_close_that_has_begun_and_does_not_interrupt_it() -> None:
    stream = Stream(GenerationFailed("broken"))
    stream.close_gate = asyncio.Event()
    one = relay(stream)
    with pytest.raises(GenerationFailed):
        await one.take()
    closing = [asyncio.create_task(one.close()) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in closing)
    stream.close_gate.set()
    await asyncio.gather(*closing)
    assert stream.closes == 1


async def test_an_answer_that_cannot_be_closed_is_our_own_trouble(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Stream):
        async def aclose(self) -> None:
            raise GenerationFailed("cannot close")

    one = relay(Stuck(Text("a"), END))
    assert await drain(one) == [(0, Text("a")), (0, END)]
    assert (await one.close()).completion_tokens == 2
    assert "an answer could not be closed" in caplog.text


class Pushed(Stream):
    """Hands its events over."""

    sink: Sink

    def follow(self, sink: Sink) -> bool:
        self.sink = sink
        return True


def pushed(*, choices: int = 1, room: int = 100) -> tuple[Relay, list[Pushed]]:
    streams = [Pushed() for _ in range(choices)]
    return relay(*streams, room=room), streams


async def test_what_is_handed_over_is_taken_in_one_go() -> None:
    one, (first, second) = pushed(choices=2)
    first.sink.put([Text("a"), Text("b")])
    second.sink.put([Text("c"), END])
    second.sink.over()
    assert await one.take() == [(0, Text("a")), (0, Text("b")), (1, Text("c")), (1, END)]
    waiting = asyncio.create_task(one.take())
    await asyncio.sleep(0)
    first.sink.put([END])
    first.sink.over()
    assert await waiting == [(0, END)]
    assert await one.take() is None
    await one.close()
    assert (first.closes, second.closes) == (0, 0)


async def test_events_are_written_without_waking_a_writer_that_waits_and_lets_them() -> None:
    one, (stream,) = pushed()
    written: list[tuple[int, Event]] = []
    ready = True

    def write(batch: list[tuple[int, Event]]) -> bool:
        written.extend(batch if ready else [])
        return ready

    one.write_with(write)
    stream.sink.put([Text("a")])
    assert not written, "nobody waits yet"
    assert await one.take() == [(0, Text("a"))]
    waiting = asyncio.create_task(one.take())
    await asyncio.sleep(0)
    stream.sink.put([Text("b")])
    stream.sink.put([Text("c")])
    assert written == [(0, Text("b")), (0, Text("c"))]
    await asyncio.sleep(0)
    assert not waiting.done()
    ready = False
    stream.sink.put([Text("d")])
    ready = True
    stream.sink.put([END])
    stream.sink.over()
    assert await waiting == [(0, Text("d")), (0, END)], "in order, whoever writes"
    assert await one.take() is None
    await one.close()


async def test_what_cannot_be_written_fails_the_answer() -> None:
    one, (stream,) = pushed()

    def write(batch: object) -> bool:
        raise ZeroDivisionError

    one.write_with(write)
    waiting = asyncio.create_task(one.take())
    await asyncio.sleep(0)
    stream.sink.put([Text("a")])
    stream.sink.put([Text("b")])
    with pytest.raises(ZeroDivisionError):
        await waiting
    await one.close()
    assert stream.closes == 1


@pytest.mark.parametrize("events", [[], [Text("a")], [Finish(reason="abort", usage=Usage())]])
async def test_an_answer_handed_over_without_its_end_is_a_failure(events: list[Event]) -> None:
    one, (stream,) = pushed()
    if events:
        stream.sink.put(events)
    stream.sink.over()
    with pytest.raises(GenerationFailed):
        await drain(one)
    await one.close()


async def test_a_failure_handed_over_comes_last_and_ends_the_other_choices() -> None:
    one, (first, second) = pushed(choices=2)
    first.sink.put([Text("a")])
    first.sink.fail(GenerationFailed("broken"))
    assert await one.take() == [(0, Text("a"))]
    with pytest.raises(GenerationFailed, match="broken"):
        await one.take()
    await asyncio.gather(one.close(), one.close())
    assert (first.closes, second.closes) == (1, 1)


async def test_a_writer_that_does_not_take_loses_what_is_handed_over() -> None:
    one, (stream,) = pushed(room=10)
    for _ in range(30):
        stream.sink.put([Text("a")])
    assert stream.closes == 0, "a writer that is merely waiting for its turn is not slow"
    await asyncio.sleep(0.01)
    assert stream.closes == 1
    stream.sink.put([Text("b")])
    assert len(await one.take() or ()) == 10
    with pytest.raises(SlowReader):
        await one.take()
    await one.close()
    assert stream.closes == 1


@pytest.mark.parametrize("begun", [False, True])
async def test_an_answer_that_is_left_for_a_slow_writer_is_left_to_the_end(begun: bool) -> None:
    one, (stream,) = pushed(room=1)
    stream.close_gate = asyncio.Event()
    stream.sink.put([Text("a")])
    stream.sink.put([Text("b")])
    await asyncio.sleep(0)
    if begun:
        await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.01, stream.close_gate.set)
    await one.close()
    assert stream.closes == 1


async def test_aborting_an_answer_that_is_handed_over() -> None:
    one, (stream,) = pushed()
    waiting = asyncio.create_task(one.take())
    await asyncio.sleep(0)
    one.abort(ClientGone("gone"))
    with pytest.raises(ClientGone):
        await waiting
    stream.sink.put([Text("a")])
    assert (await one.close()).prompt_tokens == 3
    assert stream.closes == 1


USAGES = st.builds(
    Usage,
    prompt_tokens=st.integers(0, 9),
    cached_tokens=st.integers(0, 9),
    completion_tokens=st.integers(0, 9),
    reasoning_tokens=st.integers(0, 9),
)


@given(st.lists(USAGES, min_size=1, max_size=4))
def test_the_prompt_counts_once_and_output_adds_up(usages: list[Usage]) -> None:
    total = count(usages)
    assert total.prompt_tokens == max(usage.prompt_tokens for usage in usages)
    assert total.completion_tokens == sum(usage.completion_tokens for usage in usages)
    assert total.reasoning_tokens == sum(usage.reasoning_tokens for usage in usages)
    assert any(total.cached_tokens == usage.cached_tokens for usage in usages)
