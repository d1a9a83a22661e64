"""The local tier on a real engine process with a tiny random model."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from fakes.chat_models import FakeModels, byte_level_tokenizer, write_chat_model
from fakes.checkpoints import tiny_checkpoint
from tiergate.budget import Limits
from tiergate.engine import EngineConfig, EngineProcess, launch
from tiergate.tiers import (
    Answer,
    ChatRequest,
    EngineSpec,
    Event,
    Finish,
    Message,
    Rung,
    Sampling,
    Start,
    Text,
    Think,
    Tier,
    TierSpec,
    TierUnavailable,
    open_tiers,
    run_cascade,
)

MOST = 40
SPEC = TierSpec(model="m", precision="fp32", kv_bytes=1 << 22)


def said(events: list[Event], kind: type[Text] | type[Think] = Text) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


async def answer(tier: Tier, *, thinking: bool = False, hard: int = 0, **fields: object) -> Answer:
    sampling = Sampling(temperature=0, ignore_eos=True, logprobs=1)
    messages = (Message(role="user", content="Grüße, what is it?"),)
    request = ChatRequest(model="fast", messages=messages, sampling=sampling, **fields)  # type: ignore[arg-type]
    prompt = await tier.prepare(request, thinking=thinking)
    limits = Limits(max_tokens=MOST, hard=hard, soft=None, answer_reserve=8)
    return run_cascade([Rung(tier, thinking)], request, prompt, limits)


async def played(stream: Answer) -> list[Event]:
    return [event async for event in stream]


async def test_a_real_engine(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    folder = write_chat_model(tmp_path / "model", tokenizer)
    tiny_checkpoint(folder, vocab_size=tokenizer.get_vocab_size(), seed=3)
    started: list[EngineProcess] = []

    def start(config: EngineConfig) -> EngineProcess:
        started.append(launch(config))
        return started[-1]

    tiers = await open_tiers(
        {"fast": SPEC}, EngineSpec(threads=1, restart_delay=0.05), FakeModels(folder), launch=start, load_wait=60
    )
    try:
        tier = tiers.tiers["fast"]
        whole = await played(await answer(tier))
        last = whole[-1]
        assert whole[0] == Start("fast", "m")
        assert isinstance(last, Finish)
        assert (last.reason, last.usage.completion_tokens) == ("length", MOST)
        data = b"".join(token.data for event in whole if isinstance(event, Text) for token in event.logprobs)
        assert data.decode() == said(whole)

        # A stop string found in that answer ends the same answer before it.
        text = said(whole)
        stop = text[len(text) // 2 :][:3]
        cut = await played(await answer(tier, stop=(stop,)))
        assert said(cut) == text[: text.index(stop)]
        last = cut[-1]
        assert isinstance(last, Finish)
        assert (last.reason, last.stop) == ("stop", stop)
        assert last.usage.cached_tokens > 0
        assert last.usage.completion_tokens <= MOST

        # A thought of five tokens, then the hand-off, and the answer.
        thought = await played(await answer(tier, thinking=True, hard=5))
        last = thought[-1]
        assert isinstance(last, Finish)
        assert said(thought, Think).endswith("\nTime is up.\n")
        assert said(thought)
        forced = len(tokenizer.encode("\nTime is up.\n").ids) + 1
        assert last.usage.reasoning_tokens <= 5 + 3 + forced
        assert last.usage.forced_tokens >= forced

        # A reader that leaves.
        leaving = await answer(tier)
        await anext(leaving)
        await leaving.aclose()
        assert 1 <= leaving.usage.completion_tokens <= MOST
        stats = (await tiers.stats())["fast"]
        assert (stats.running, stats.waiting, stats.active) == (0, 0, 0)

        # The engine is killed with a request on its hands, and started again.
        os.kill(started[0].pid, signal.SIGSTOP)
        dying = asyncio.create_task(played(await answer(tier)))
        await asyncio.sleep(0)
        os.kill(started[0].pid, signal.SIGKILL)
        with pytest.raises(TierUnavailable):
            await dying
        assert not tier.health().ready
        assert said(await played(await answer(tier))) == said(whole)
        assert len(started) == 2
    finally:
        await tiers.close()
    assert not started[-1].alive()
