"""The local tier and its client against a fake engine, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from fakes.chat_models import FakeModels, byte_level_tokenizer, write_chat_model
from fakes.engine import FakeLaunch, Script
from tiergate.budget import Limits
from tiergate.tiers import (
    ChatRequest,
    EngineSpec,
    Finish,
    Message,
    OpenTiers,
    Rung,
    Start,
    Text,
    TierSpec,
    Usage,
    open_tiers,
    run_cascade,
)

LIMITS = Limits(max_tokens=64, hard=None, soft=None, answer_reserve=0)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level_tokenizer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model"), tokenizer)


@asynccontextmanager
async def opened(folder: Path, launch: FakeLaunch) -> AsyncIterator[OpenTiers]:
    tiers = await open_tiers(
        {"fast": TierSpec(model="m"), "deep": TierSpec(model="m")}, EngineSpec(), FakeModels(folder), launch=launch
    )
    try:
        yield tiers
    finally:
        await tiers.close()


def asked(text: str = "Hello", **fields: object) -> ChatRequest:
    return ChatRequest(model="fast", messages=(Message(role="user", content=text),), **fields)  # type: ignore[arg-type]


async def test_streams_an_answer(folder: Path, tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("A gateway speaks to two tiers.").ids, 2]
    launch = FakeLaunch(tokenizer.get_vocab_size(), (2,), lambda request: Script(ids=ids))
    async with opened(folder, launch) as tiers:
        tier = tiers.tiers["fast"]
        prompt = await tier.prepare(asked(), thinking=False)
        events = [event async for event in run_cascade([Rung(tier)], asked(), prompt, LIMITS)]
    assert events[0] == Start("fast", "m")
    assert "".join(event.text for event in events if isinstance(event, Text)) == "A gateway speaks to two tiers."
    assert events[-1] == Finish(reason="stop", usage=Usage(prompt_tokens=prompt.tokens, completion_tokens=len(ids)))
