"""One suite for everything that answers: the local tier, the fake one that stands in for it, and cascades of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from fakes.chat_models import FakeModels, byte_level_tokenizer, write_chat_model
from fakes.engine import FakeLaunch, Script
from fakes.tier import FakeTier, say
from tiergate.budget import Limits
from tiergate.tiers import (
    Answer,
    BadField,
    ChatRequest,
    ContextTooLong,
    EngineSpec,
    Finish,
    Message,
    Rung,
    Sampling,
    Start,
    Text,
    Tier,
    TierSpec,
    Usage,
    open_tiers,
    run_cascade,
)

SAID = "A gateway speaks to two tiers and to nobody else"
LIMITS = Limits(max_tokens=64, hard=0, soft=None, answer_reserve=0)
REQUEST = ChatRequest(model="fast", messages=(Message(role="user", content="Hello there"),))

Wrap = Callable[[Tier], list[Rung]]
WRAPS: dict[str, Wrap] = {
    "alone": lambda tier: [Rung(tier)],
    "first of two": lambda tier: [Rung(tier), Rung(FakeTier("spare"))],
    "second of two": lambda tier: [Rung(FakeTier("empty", say(""))), Rung(tier)],
}


@asynccontextmanager
async def local(folder: Path) -> AsyncIterator[Tier]:
    tokenizer = byte_level_tokenizer()
    write_chat_model(folder, tokenizer)
    ids = [*tokenizer.encode(SAID).ids, 2]
    launch = FakeLaunch(tokenizer.get_vocab_size(), (2,), lambda request: Script(ids=ids), context=200, step=0.002)
    tiers = await open_tiers({"fast": TierSpec(model="m")}, EngineSpec(), FakeModels(folder), launch=launch)
    try:
        yield tiers.tiers["fast"]
    finally:
        await tiers.close()


@asynccontextmanager
async def fake(folder: Path) -> AsyncIterator[Tier]:
    yield FakeTier("fast", say(SAID, delay=0.002), context=200)


@pytest_asyncio.fixture(params=[local, fake], ids=["local", "fake"])
async def tier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Tier]:
    async with request.param(tmp_path) as opened:
        yield opened


@pytest.fixture(params=WRAPS.values(), ids=WRAPS.keys())
def wrap(request: pytest.FixtureRequest) -> Wrap:
    found: Wrap = request.param
    return found


async def begin(tier: Tier, wrap: Wrap) -> Answer:
    rungs = wrap(tier)
    return run_cascade(rungs, REQUEST, await rungs[0].tier.prepare(REQUEST, thinking=False), LIMITS)


async def test_starts_finishes_and_counts(tier: Tier, wrap: Wrap) -> None:
    answer = await begin(tier, wrap)
    events = [event async for event in answer]
    last = events[-1]
    assert isinstance(events[0], Start)
    starts = [event for event in events if isinstance(event, Start)]
    assert starts[-1] == Start("fast", tier.model)
    assert "".join(event.text for event in events if isinstance(event, Text)) == SAID
    assert isinstance(last, Finish)
    assert (last.reason, last.stop) == ("stop", None)
    assert last.usage == answer.usage
    assert last.usage.prompt_tokens > 0
    assert last.usage.completion_tokens >= len(SAID.split())
    with pytest.raises(StopAsyncIteration):
        await anext(answer)


async def test_nothing_runs_before_the_first_event_is_asked_for(tier: Tier, wrap: Wrap) -> None:
    answer = await begin(tier, wrap)
    await asyncio.sleep(0.01)
    assert (tier.health().running, tier.health().waiting) == (0, 0)
    assert answer.usage == Usage()
    await answer.aclose()
    assert answer.usage == Usage()


async def test_closing_early_frees_the_tier_and_keeps_the_count(tier: Tier, wrap: Wrap) -> None:
    answer = await begin(tier, wrap)
    async for event in answer:
        if isinstance(event, Text):
            break
    await answer.aclose()
    assert (tier.health().running, tier.health().waiting) == (0, 0)
    assert answer.usage.completion_tokens >= 1
    spent = answer.usage
    await answer.aclose()
    assert answer.usage == spent
    with pytest.raises(StopAsyncIteration):
        await anext(answer)


async def test_a_cancelled_reader_can_still_close_and_count(tier: Tier, wrap: Wrap) -> None:
    answer = await begin(tier, wrap)
    begun = asyncio.Event()

    async def read() -> None:
        try:
            async for _ in answer:
                begun.set()
        finally:
            await answer.aclose()

    reader = asyncio.create_task(read())
    await begun.wait()
    reader.cancel()
    await asyncio.wait((reader,))
    assert reader.cancelled()
    assert (tier.health().running, tier.health().waiting) == (0, 0)
    assert answer.usage.prompt_tokens > 0


async def test_refusals(tier: Tier) -> None:
    prompt = await tier.prepare(REQUEST, thinking=False)
    assert prompt.tokens + prompt.room == 200
    long = ChatRequest(model="fast", messages=REQUEST.messages, max_tokens=prompt.room + 1)
    with pytest.raises(ContextTooLong) as caught:
        await tier.prepare(long, thinking=False)
    assert caught.value.context == 200
    biased = ChatRequest(model="fast", messages=REQUEST.messages, sampling=Sampling(logit_bias={10**6: 1.0}))
    with pytest.raises(BadField) as refused:
        await tier.prepare(biased, thinking=False)
    assert refused.value.param == "logit_bias"


async def test_health(tier: Tier) -> None:
    await tier.prepare(REQUEST, thinking=False)
    assert tier.health().ready
    assert tier.health().reason == ""
