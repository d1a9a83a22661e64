"""`tiergate serve` with the embedded pair, through the official client."""

from __future__ import annotations

import asyncio
import collections
import itertools
import re
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from fakes.models import embedded_catalog
from support.prompts import CONVERSATIONS
from support.server import Server
from tiergate.budget import open_store

pytestmark = [pytest.mark.models, pytest.mark.timeout(600)]

SETTINGS = """
data = "data"

[models]
cache = "{cache}"

# In fp32 a request gets the very tokens in a batch, or behind a prefix hit, that it gets alone.

[tiers.fast]
model = "smollm2-135m"
precision = "fp32"

[tiers.deep]
model = "smollm2-135m-moe"
precision = "fp32"
thinking = {{ enabled = true, budget = 24 }}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    cache = embedded_catalog().root
    with Server(tmp_path_factory.mktemp("serve"), SETTINGS.format(cache=cache)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120) as made:
        yield made


def books(server: Server) -> tuple[int, int]:
    """Open grants and tokens reserved, of everybody, as the store on disk has them; checks the store."""

    async def read() -> tuple[int, int]:
        store = open_store("sqlite:", folder=server.folder / "data")
        try:
            await store.check()
            day = f"day:{datetime.now(UTC):%Y-%m-%d}"
            balance = await store.balance("local", day)
            assert balance.granted == balance.open_grants + balance.settled_grants
            assert balance.granted > 0
            return balance.open_grants, balance.reserved
        finally:
            await store.close()

    return asyncio.run(read())


def assert_at_rest(server: Server) -> None:
    """Within a few seconds no lane holds a block and no grant is open."""
    deadline = time.monotonic() + 15
    while True:
        metrics = server.metrics()
        lanes = {lane for name, lane in metrics if name == "tiergate_lane_blocks"}
        assert lanes == {"fast", "deep"}
        busy = {
            lane: metrics["tiergate_lane_active", lane]
            + metrics["tiergate_lane_running", lane]
            + metrics["tiergate_lane_waiting", lane]
            for lane in lanes
        }
        if not any(busy.values()) and books(server) == (0, 0):
            break
        assert time.monotonic() < deadline, (busy, books(server))
        time.sleep(0.2)
    for lane in lanes:
        free, cached = metrics["tiergate_lane_free", lane], metrics["tiergate_lane_cached", lane]
        assert free + cached == metrics["tiergate_lane_blocks", lane]


def ask(client: openai.OpenAI, model: str, question: str, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": question}]
    return client.chat.completions.create(model=model, messages=messages, **options)


def collect(stream: Any) -> dict[str, Any]:
    """What a stream says, put together."""
    text, thought, finish, usage, ids = "", "", None, None, set()
    for chunk in stream:
        ids.add(chunk.id)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            thought += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
    assert len(ids) == 1
    return {"text": text, "thought": thought, "finish": finish, "usage": usage}


@pytest.mark.parametrize("model", ["fast", "deep", "auto"])
def test_an_answer_is_the_same_streamed_or_not(client: openai.OpenAI, model: str) -> None:
    options: Any = {"temperature": 0, "max_tokens": 96, "model": model, "question": "What is the capital of France?"}
    whole = ask(client, **options)
    parts = collect(ask(client, **options, stream=True, stream_options={"include_usage": True}))
    message = whole.choices[0].message
    assert message.content == parts["text"]
    assert (getattr(message, "reasoning_content", None) or "") == parts["thought"]
    assert whole.choices[0].finish_reason == parts["finish"]
    assert whole.usage.completion_tokens == parts["usage"].completion_tokens
    assert "Paris" in message.content
    assert (parts["thought"] != "") == (whole.model == "smollm2-135m-moe")


def test_answers_are_english(client: openai.OpenAI) -> None:
    text = ask(client, "fast", "Tell me about the ocean in three sentences.", temperature=0, max_tokens=96)
    words = re.findall("[a-z]+", text.choices[0].message.content.lower())
    common = {"the", "of", "and", "is", "a", "to", "in", "it", "that", "are", "with", "as", "for", "ocean", "water"}
    assert len(words) > 20
    assert sum(word in common for word in words) > len(words) / 4


def test_a_hard_budget_is_kept_to_the_token(client: openai.OpenAI) -> None:
    plain = ask(client, "deep", "Why is the sky blue?", temperature=0, max_tokens=100, reasoning_effort="none")
    assert plain.usage.completion_tokens_details.reasoning_tokens == 0
    lengths = []
    for budget in (0, 1, 8, 20):
        extra = {"thinking": {"type": "enabled", "budget_tokens": budget}} if budget else {"thinking_budget": 0}
        got = ask(client, "deep", "Why is the sky blue?", temperature=0, max_tokens=100, extra_body=extra)
        assert got.choices[0].message.content
        lengths.append(got.usage.completion_tokens_details.reasoning_tokens)
    assert lengths[0] == 0
    # hand-off and markers cost the same each time, so the differences are the budgets'
    assert [b - a for a, b in itertools.pairwise(lengths[1:])] == [7, 12]


def test_the_route_is_told(server: Server) -> None:
    body = {"model": "auto", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.headers["x-tiergate-tier"] == "fast"
    assert "reason=" in answer.headers["x-tiergate-route"]


async def stream_some(
    client: openai.AsyncOpenAI, messages: Any, max_tokens: int, cut_after: int | None, **options: Any
) -> str:
    """The text of one streamed answer; `cut_after` events the client walks away."""
    stream = await client.chat.completions.create(
        model="fast", messages=messages, max_tokens=max_tokens, stream=True, **options
    )
    text, seen = "", 0
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        seen += 1
        if cut_after is not None and seen >= cut_after:
            await stream.close()
            break
    return text


async def test_64_streams_of_which_a_third_is_cut(server: Server) -> None:
    jobs: list[dict[str, Any]] = []
    for i in range(64):
        messages = [*CONVERSATIONS[i % len(CONVERSATIONS)][:-1], {"role": "user", "content": f"Question {i}: why?"}]
        drawn = {"temperature": 0.8, "seed": i} if i % 2 else {"temperature": 0}
        jobs.append({"messages": messages, "max_tokens": 12, **drawn})
    limits = httpx.Limits(max_connections=100)
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1",
        api_key="unused",
        max_retries=0,
        timeout=300,
        http_client=httpx.AsyncClient(limits=limits, timeout=300),
    ) as client:
        together = await asyncio.gather(
            *(stream_some(client, cut_after=1 + i % 5 if i % 3 == 0 else None, **job) for i, job in enumerate(jobs))
        )
        await asyncio.to_thread(assert_at_rest, server)
        for i, job in enumerate(jobs):
            if i % 3:
                assert together[i] == await stream_some(client, cut_after=None, **job), i
    await asyncio.to_thread(assert_at_rest, server)


def test_a_killed_engine_is_replaced(server: Server, client: openai.OpenAI) -> None:
    engine = server.engine()
    stream = iter(ask(client, "fast", "Tell me a very long story.", max_tokens=2000, stream=True))
    for _ in range(4):
        next(stream)
    engine.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(openai.APIError) as caught:
        collections.deque(stream, maxlen=0)
    assert caught.value.body is not None
    server.wait_ready()
    answer = ask(client, "fast", "What is the capital of France?", temperature=0, max_tokens=16)
    assert "Paris" in answer.choices[0].message.content
    assert time.monotonic() - killed <= 10 + server.start_seconds
    assert server.engine().pid != engine.pid
    assert_at_rest(server)


def test_it_stops_when_told_to(tmp_path: Path) -> None:
    cache = embedded_catalog().root
    server = Server(tmp_path, SETTINGS.format(cache=cache))
    with server:
        engine = server.engine()
    assert server.process.returncode == 0
    assert not engine.is_running()
