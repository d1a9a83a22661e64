"""An answer that is followed says and does the same as one that is iterated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from fakes.chat_models import FakeModels, byte_level_tokenizer, write_chat_model
from fakes.engine import FakeLaunch, Script
from tiergate.budget import Limits
from tiergate.tiers import (
    Answer,
    ChatRequest,
    EngineSpec,
    Event,
    Finish,
    GenerationFailed,
    Message,
    Sampling,
    Start,
    Text,
    Tier,
    TierSpec,
    TierUnavailable,
    Usage,
    open_tiers,
)
from tiergate.tiers.assemble import Assembler

LIMITS = Limits(max_tokens=64, hard=0, soft=None, answer_reserve=8)
EOS = 2
SAID = "A gateway speaks to two tiers, the fast one and the deep one."


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level_tokenizer()


class Heard:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.batches = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, events: Sequence[Event]) -> None:
        assert events
        assert not self.ended.done()
        self.batches += 1
        self.events += events

    def fail(self, error: Exception) -> None:
        self.ended.set_exception(error)

    def over(self) -> None:
        self.ended.set_result(None)


class House:
    def __init__(self, launch: FakeLaunch, tier: Tier, tokenizer: Tokenizer) -> None:
        self.launch, self.tier, self.tokenizer = launch, tier, tokenizer
        self.script = Script(ids=[])

    def saying(self, text: str, **options: Any) -> Script:
        self.script = Script(ids=[*self.tokenizer.encode(text).ids, EOS], **options)
        return self.script

    async def answer(self, **fields: Any) -> Answer:
        request = ChatRequest(model="fast", messages=(Message(role="user", content="Hello"),), **fields)
        return self.tier.stream(request, await self.tier.prepare(request, thinking=False), LIMITS)


@asynccontextmanager
async def opened(folder: Path, tokenizer: Tokenizer) -> AsyncIterator[House]:
    launch = FakeLaunch(tokenizer.get_vocab_size(), (EOS,), lambda _: house.script)
    tiers = await open_tiers(
        {"fast": TierSpec(model="m")}, EngineSpec(restart_delay=0.01), FakeModels(folder), launch=launch, load_wait=10.0
    )
    house = House(launch, tiers.tiers["fast"], tokenizer)
    try:
        yield house
    finally:
        await tiers.close()


@pytest.fixture
async def house(tmp_path: Path, tokenizer: Tokenizer) -> AsyncIterator[House]:
    async with opened(write_chat_model(tmp_path / "model", tokenizer), tokenizer) as made:
        yield made


def joined(events: Sequence[Event]) -> list[Event]:
    """With neighbouring texts as one, because how they are cut is a matter of time."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, Text) and isinstance(last, Text):
            out[-1] = Text(last.text + event.text, last.logprobs + event.logprobs)
        else:
            out.append(event)
    return out


@pytest.mark.parametrize("per_step", [1, 3, 100])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"whole": True},
        {"stop": ("two t",)},
        {"stop": ("two t",), "whole": True},
        {"sampling": Sampling(logprobs=1)},
    ],
)
async def test_the_same_events(house: House, per_step: int, fields: dict[str, Any]) -> None:
    house.saying(SAID, per_step=per_step, cached_tokens=2)
    iterated = [event async for event in await house.answer(**fields)]
    followed, heard = await house.answer(**fields), Heard()
    assert followed.follow(heard)
    assert followed.usage.prompt_tokens > 0
    await heard.ended
    assert joined(heard.events) == joined(iterated)
    last = heard.events[-1]
    assert isinstance(last, Finish)
    assert followed.usage == last.usage
    assert (house.tier.health().running, house.tier.health().waiting) == (0, 0)
    await followed.aclose()


async def test_a_whole_answer_comes_in_few_pieces(house: House) -> None:
    house.saying(SAID)
    followed, heard = await house.answer(whole=True), Heard()
    followed.follow(heard)
    await heard.ended
    assert heard.batches <= 3


async def test_an_engine_that_never_confirms_a_stop(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiergate.tiers.generation.ABORT_WAIT", 0.05)
    house.saying("one two three", hangs=True)
    followed, heard = await house.answer(stop=("two",)), Heard()
    monkeypatch.setattr("tiergate.tiers.engine_client.EngineClient.abort", lambda self, id: None)
    followed.follow(heard)
    await heard.ended
    assert heard.events[-1] == Finish(reason="stop", usage=followed.usage, stop="two")
    await followed.aclose()


async def test_failures_come_behind_what_came_before_them(house: House) -> None:
    house.script = replace(house.saying("Hm"), fails="numeric")
    followed, heard = await house.answer(), Heard()
    followed.follow(heard)
    with pytest.raises(GenerationFailed):
        await heard.ended
    assert heard.events[0] == Start("fast", "m")
    assert followed.usage.completion_tokens == len(house.script.ids)
    await followed.aclose()


async def test_an_engine_that_dies(house: House) -> None:
    house.saying("Hm", hangs=True)
    running, waiting = Heard(), Heard()
    (await house.answer()).follow(running)
    while not running.events:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    house.script = Script(ids=[], hangs=True)
    (await house.answer()).follow(waiting)
    never = await house.answer()
    house.launch.engines[0].crash()
    with pytest.raises(GenerationFailed):
        await running.ended
    with pytest.raises(TierUnavailable):
        await waiting.ended
    late = Heard()
    never.follow(late)
    with pytest.raises(TierUnavailable):
        await late.ended
    await never.aclose()
    assert never.usage == Usage()


async def test_leaving_aborts_and_counts_and_hands_nothing_over_any_more(house: House) -> None:
    house.saying(SAID, hangs=True)
    followed, heard = await house.answer(), Heard()
    followed.follow(heard)
    while not heard.events:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await followed.aclose()
    count = len(heard.events)
    engine = house.launch.engines[0]
    assert engine.aborted == [engine.requests[-1].id]
    assert followed.usage.completion_tokens > 0
    await asyncio.sleep(0.02)
    assert len(heard.events) == count
    assert not heard.ended.done()
    assert house.tier.health().running == 0


async def test_what_breaks_in_one_answer_leaves_the_others_alone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.saying(SAID)
    whole = Assembler.feed

    def breaking(self: Assembler, ids: Sequence[int], logprobs: Any) -> list[Event]:
        if logprobs is not None:
            raise ZeroDivisionError
        return whole(self, ids, logprobs)

    monkeypatch.setattr(Assembler, "feed", breaking)
    broken, sound = await house.answer(sampling=Sampling(logprobs=0)), await house.answer()
    bad, good = Heard(), Heard()
    broken.follow(bad)
    sound.follow(good)
    with pytest.raises(ZeroDivisionError):
        await bad.ended
    await good.ended
    assert "".join(event.text for event in good.events if isinstance(event, Text)) == SAID
    await broken.aclose()
    assert house.tier.health().running == 0
