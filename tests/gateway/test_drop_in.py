"""The official client against the gateway, in-process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import httpx2
import openai
import pytest

from fakes.asgi import opened
from fakes.tier import FakeTier
from tiergate.budget import TenantSpec
from tiergate.tiers import Called, Finish, Text, TokenLogprob, ToolCall, Usage

from .conftest import Build, House

HI = [{"role": "user", "content": "Hi"}]


@contextlib.asynccontextmanager
async def official(house: House, key: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
    transport = httpx2.ASGITransport(house.app)
    async with (
        opened(house.app),
        httpx2.AsyncClient(transport=transport) as http,
        openai.AsyncOpenAI(base_url="http://localhost/v1", api_key=key, http_client=http, max_retries=0) as client,
    ):
        yield client


async def test_a_whole_answer(house: Build) -> None:
    async with official(house()) as client:
        answer = await client.chat.completions.create(model="fast", messages=HI)
    assert answer.object == "chat.completion"
    assert answer.model == "fake-fast"
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert choice.message.role == "assistant"
    assert choice.message.content == "Hello there, friend."
    assert choice.message.tool_calls is None
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (2, 3, 5)


async def test_a_stream(house: Build) -> None:
    async with official(house()) as client:
        stream = await client.chat.completions.create(
            model="deep", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert len({chunk.id for chunk in chunks}) == 1
    assert len({chunk.created for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    thought = "".join(
        (chunk.choices[0].delta.model_extra or {}).get("reasoning_content", "") for chunk in chunks if chunk.choices
    )
    assert text == "It is 4."
    assert thought == "Two and two."
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 3


async def test_a_stream_without_usage_has_no_usage_chunk(house: Build) -> None:
    async with official(house()) as client:
        stream = await client.chat.completions.create(model="fast", messages=HI, stream=True)
        chunks = [chunk async for chunk in stream]
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


async def test_choices_have_their_own_seeds_and_share_the_prompt(house: Build) -> None:
    home = house()
    async with official(home) as client:
        answer = await client.chat.completions.create(model="fast", messages=HI, n=3, seed=2**63 - 1)
        balance = await home.balance()
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {request.sampling.seed for request in home.fast.requests} == {2**63 - 1, -(2**63), -(2**63) + 1}
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 9)
    assert (balance.reserved, balance.spent, balance.settled_grants) == (0, 11, 1)


async def test_a_stream_of_several_choices(house: Build) -> None:
    async with official(house()) as client:
        stream = await client.chat.completions.create(model="fast", messages=HI, n=2, stream=True)
        texts, ends = {0: "", 1: ""}, {0: 0, 1: 0}
        async for chunk in stream:
            for choice in chunk.choices:
                assert not ends[choice.index], "nothing follows a choice's finish"
                texts[choice.index] += choice.delta.content or ""
                ends[choice.index] += choice.finish_reason is not None
    assert texts == {0: "Hello there, friend.", 1: "Hello there, friend."}
    assert ends == {0: 1, 1: 1}


async def test_log_probabilities(house: Build) -> None:
    smile = "\U0001f642"
    data = smile.encode()
    tokens = (
        TokenLogprob("a", b"a", -0.5, (("a", b"a", -0.5), ("b", b"b", -1.0))),
        TokenLogprob("\ufffd", data[:2], float("-inf")),
        TokenLogprob("\ufffd", data[2:], -0.25),
    )
    script = [Text("a" + smile, tokens), Finish(reason="stop", usage=Usage())]
    async with official(house(FakeTier("fast", lambda *_: script))) as client:
        answer = await client.chat.completions.create(model="fast", messages=HI, logprobs=True, top_logprobs=2)
        stream = await client.chat.completions.create(
            model="fast", messages=HI, logprobs=True, top_logprobs=2, stream=True
        )
        streamed = [choice.logprobs async for chunk in stream for choice in chunk.choices if choice.logprobs]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert bytes(byte for one in logprobs.content for byte in one.bytes or ()) == ("a" + smile).encode()
    assert [one.logprob for one in logprobs.content] == [-0.5, -9999.0, -0.25]
    assert [(one.token, one.logprob) for one in logprobs.content[0].top_logprobs] == [("a", -0.5), ("b", -1.0)]
    assert [one.content for one in streamed] == [logprobs.content]


async def test_tool_calls(house: Build) -> None:
    calls = [
        Called(0, ToolCall(id="call_1", name="look", arguments='{"city":"Paris"}')),
        Called(1, ToolCall(id="call_2", name="look", arguments="{}")),
    ]
    script = [*calls, Finish(reason="tool_calls", usage=Usage())]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    home = house(FakeTier("fast", lambda *_: script))
    async with official(home) as client:
        answer = await client.chat.completions.create(model="fast", messages=HI, tools=tools)
        single = await client.chat.completions.create(model="fast", messages=HI, tools=tools, parallel_tool_calls=False)
        async with client.chat.completions.stream(model="fast", messages=HI, tools=tools) as stream:
            final = await stream.get_final_completion()
    for one in (answer, final):
        choice = one.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content in (None, "")
        assert [
            (call.id, call.function.name, call.function.arguments)
            for call in choice.message.tool_calls or ()
            if call.type == "function"
        ] == [("call_1", "look", '{"city":"Paris"}'), ("call_2", "look", "{}")]
    assert [call.id for call in single.choices[0].message.tool_calls or ()] == ["call_1"]
    assert home.fast.requests[0].tools[0].name == "look"


async def test_models(house: Build) -> None:
    async with official(house()) as client:
        names = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("fake-deep")
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("nothing/like:this")
    assert names == ["auto", "fast", "fake-fast", "deep", "fake-deep"]
    assert (one.id, one.object, one.owned_by) == ("fake-deep", "model", "tiergate")


async def test_keys(house: Build) -> None:
    tenants = {"alice": TenantSpec(keys=("sk-alice",), models=("fast",))}
    async with official(house(tenants=tenants), key="wrong") as client:
        with pytest.raises(openai.AuthenticationError) as wrong:
            await client.chat.completions.create(model="fast", messages=HI)
    assert wrong.value.code == "invalid_api_key"
    async with official(house(tenants=tenants), key="sk-alice") as client:
        assert (await client.chat.completions.create(model="fast", messages=HI)).choices
        with pytest.raises(openai.PermissionDeniedError):
            await client.chat.completions.create(model="deep", messages=HI)
        assert [model.id async for model in client.models.list()] == ["auto", "fast", "fake-fast"]
        assert (await client.chat.completions.create(model="auto", messages=HI)).model == "fake-fast"


async def test_an_error_within_a_stream_reaches_the_client(house: Build) -> None:
    tier = FakeTier("fast", lambda *_: [Text("Hel"), 0.0, RuntimeError("secret /etc/path")])
    home = house(tier)
    async with official(home) as client:
        stream = await client.chat.completions.create(model="fast", messages=HI, stream=True)
        chunks = aiter(stream)
        seen = [(await anext(chunks)).choices[0].delta.content for _ in range(2)]
        with pytest.raises(openai.APIError) as failure:
            await anext(chunks)
        balance = await home.balance()
    assert seen == ["", "Hel"]
    assert "secret" not in json.dumps(failure.value.body)
    assert (balance.reserved, balance.settled_grants, balance.spent) == (0, 1, 3)


async def test_the_raw_response_tells_what_happened(house: Build) -> None:
    async with official(house()) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="deep", messages=HI, extra_body={"thinking_budget": 5, "thinking_mode": "soft"}
        )
        answer = raw.parse()
    assert answer.choices[0].message.model_extra == {
        "reasoning_content": "Two and two.", "reasoning": "Two and two."
    }  # fmt: skip
    assert raw.headers["x-tiergate-tier"] == "deep"
    assert raw.headers["x-tiergate-thinking-budget"] == "7"
    assert raw.headers["x-tiergate-thinking-mode"] == "soft"
    assert raw.headers["x-request-id"].removeprefix("req_") == answer.id.removeprefix("chatcmpl-")
    assert int(raw.headers["openai-processing-ms"]) >= 0
    assert 'reason="named by the request"' in raw.headers["x-tiergate-route"]
