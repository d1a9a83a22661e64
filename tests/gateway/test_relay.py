from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiergate.gateway.errors import ClientGone, SlowReader
from tiergate.gateway.relay import Relay, count
from tiergate.tiers import Event, Finish, GenerationFailed, Text, Usage

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
