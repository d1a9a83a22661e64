"""The local tier and its client against a fake engine, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from fakes.chat_models import CHATML, FakeModels, byte_level_tokenizer, write_chat_model
from fakes.engine import FakeLaunch, Script
from tiergate.budget import Limits
from tiergate.engine import messages
from tiergate.tiers import (
    Answer,
    BadField,
    BadPrompt,
    Called,
    ChatRequest,
    ContextTooLong,
    EngineSpec,
    Event,
    Finish,
    GenerationFailed,
    Message,
    ModelMissing,
    OpenTiers,
    Rung,
    Sampling,
    Start,
    Text,
    Think,
    ThinkingSpec,
    Tier,
    TierError,
    TierSpec,
    TierUnavailable,
    TokenLogprob,
    ToolSpec,
    Usage,
    open_tiers,
    run_cascade,
)
from tiergate.tiers.folder import Thinking

LIMITS = Limits(max_tokens=64, hard=32, soft=None, answer_reserve=8)
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
EOS = 2
SAID = "A gateway speaks to two tiers."
TOOLED = "{% if tools %}{{ tools | tojson }}\n{% endif %}" + CHATML


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level_tokenizer(markers=MARKERS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model"), tokenizer, template=TOOLED)


class Setup:
    """Two tiers of one model on a fake engine that says what it is told to."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.folder = folder
        self.script = self.saying(SAID)
        self.launch = FakeLaunch(tokenizer.get_vocab_size(), (EOS,), lambda request: self.script)
        self.specs = {"fast": TierSpec(model="m"), "deep": TierSpec(model="m", kv_bytes=1 << 20, weight=2.0)}
        self.spec = EngineSpec(restart_delay=0.01)

    def saying(self, text: str, **options: Any) -> Script:
        return Script(ids=[*self.tokenizer.encode(text).ids, EOS], **options)

    @asynccontextmanager
    async def open(self, load_wait: float = 10.0, **options: Any) -> AsyncIterator[OpenTiers]:
        tiers = await open_tiers(
            self.specs, self.spec, FakeModels(self.folder), launch=self.launch, load_wait=load_wait, **options
        )
        try:
            yield tiers
        finally:
            await tiers.close()


@pytest.fixture
def setup(folder: Path, tokenizer: Tokenizer) -> Iterator[Setup]:
    made = Setup(folder, tokenizer)
    yield made
    assert not any(engine.alive for engine in made.launch.engines)


def asked(text: str = "Hello", **fields: Any) -> ChatRequest:
    return ChatRequest(model="fast", messages=(Message(role="user", content=text),), **fields)


async def answer(
    tier: Tier, request: ChatRequest | None = None, limits: Limits = LIMITS, *, thinking: bool = False
) -> Answer:
    request = request or asked()
    return run_cascade([Rung(tier, thinking)], request, await tier.prepare(request, thinking=thinking), limits)


async def drain(stream: Answer) -> list[Event]:
    return [event async for event in stream]


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came about")


def said(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def tokens_of(events: list[Event]) -> list[TokenLogprob]:
    return [one for event in events if isinstance(event, Text) for one in event.logprobs]


def finish(events: list[Event]) -> Finish:
    last = events[-1]
    assert isinstance(last, Finish)
    return last


async def test_streams_an_answer(setup: Setup) -> None:
    async with setup.open() as tiers:
        tier = tiers.tiers["fast"]
        stream = await answer(tier)
        assert stream.usage == Usage()
        events = await drain(stream)
    (request,) = setup.launch.engines[0].requests
    usage = Usage(prompt_tokens=len(request.token_ids), completion_tokens=len(setup.script.ids))
    assert events[0] == Start("fast", "m")
    assert len(events) == len(setup.script.ids) + 1, "each token is an event, but for the last two"
    assert said(events) == SAID
    assert finish(events) == Finish(reason="stop", usage=usage)
    assert stream.usage == usage
    await stream.aclose()
    assert stream.usage == usage


async def test_the_request_that_the_engine_sees(setup: Setup) -> None:
    sampling = Sampling(temperature=0.5, top_k=3, logit_bias={7: -1.0}, seed=5, stop_token_ids=(9,), logprobs=2)
    request = asked(sampling=sampling, salt="tenant", priority=3)
    async with setup.open() as tiers:
        prompt = await tiers.tiers["deep"].prepare(request, thinking=False)
        [_ async for _ in run_cascade([Rung(tiers.tiers["deep"])], request, prompt, LIMITS)]
    (seen,) = setup.launch.engines[0].requests
    assert (seen.lane, seen.salt, seen.priority) == ("deep", "tenant", 3)
    assert tuple(seen.token_ids) == prompt.ids
    assert seen.sampling == messages.SamplingParams(
        max_tokens=64, temperature=0.5, top_k=3, logit_bias={7: -1.0}, seed=5, stop_token_ids=(9,), logprobs=2
    )


@pytest.mark.parametrize(("said", "sent"), [({}, (0.2, 0.9)), ({"temperature": 0.0, "top_p": 1.0}, (0.0, 1.0))])
async def test_the_tier_decides_what_the_client_leaves_open(
    setup: Setup, said: dict[str, float], sent: tuple[float, float]
) -> None:
    setup.specs["fast"] = TierSpec(model="m", temperature=0.2, top_p=0.9)
    async with setup.open() as tiers:
        await drain(await answer(tiers.tiers["fast"], asked(sampling=Sampling(**said))))
    sampling = setup.launch.engines[0].requests[0].sampling
    assert (sampling.temperature, sampling.top_p) == sent


async def test_lanes_of_one_engine(setup: Setup) -> None:
    async with setup.open() as tiers:
        await answer(tiers.tiers["fast"])
        assert tiers.ready()
        assert set(await tiers.stats()) == {"fast", "deep"}
    (config,) = setup.launch.configs
    assert [(lane.name, lane.model, lane.kv_bytes, lane.weight) for lane in config.lanes] == [
        ("fast", str(setup.folder), 1 << 30, 1.0),
        ("deep", str(setup.folder), 1 << 20, 2.0),
    ]


async def test_thinking(setup: Setup) -> None:
    setup.script = setup.saying("hm\n</think>\n\nYes.", thinking_tokens=3)
    async with setup.open() as tiers:
        tier = tiers.tiers["deep"]
        assert tier.thinks
        assert tier.spec.thinking.handoff == "\nTime is up.\n"
        assert tier.spec.thinking.budget == 64
        stream = await answer(tier, thinking=True)
        events = await drain(stream)
        assert "".join(event.text for event in events if isinstance(event, Think)) == "hm\n"
        assert said(events) == "Yes."
        assert finish(events).usage.reasoning_tokens == 3
        await (await answer(tier, thinking=False)).__anext__()
    first, second = (request.think for request in setup.launch.engines[0].requests)
    closer = setup.tokenizer.token_to_id("</think>")
    assert first is not None
    assert (first.open, first.hard, first.answer_reserve) == (True, 32, 8)
    assert (first.closers, first.openers) == (((closer,),), ((closer - 1,),))
    assert setup.tokenizer.decode(list(first.handoff)) == "\nTime is up.\n"
    assert setup.tokenizer.decode(list(first.after)) == "\n\n"
    assert first.implicit_closers == ()
    assert second is not None
    assert (second.open, second.hard) == (False, 0)


async def test_a_tier_whose_model_does_not_think(setup: Setup) -> None:
    models = FakeModels(setup.folder, thinking=Thinking())
    tiers = await open_tiers(setup.specs, setup.spec, models, launch=setup.launch)
    assert not tiers.tiers["deep"].thinks
    await drain(await answer(tiers.tiers["deep"], thinking=True))
    await tiers.close()
    assert setup.launch.engines[0].requests[0].think is None


async def test_the_configuration_wins_over_the_models_facts(setup: Setup) -> None:
    setup.specs["deep"] = TierSpec(model="m", thinking=ThinkingSpec(handoff="Stop.", budget=7, closer="</tool_call>"))
    async with setup.open() as tiers:
        thinking = tiers.tiers["deep"].spec.thinking
        assert (thinking.opener, thinking.closer, thinking.handoff, thinking.budget) == (
            "<think>", "</tool_call>", "Stop.", 7,
        )  # fmt: skip


async def test_a_stop_string_ends_the_generation(setup: Setup) -> None:
    setup.script = setup.saying(SAID + " And on it goes.", hangs=True, cached_tokens=2)
    setup.launch.step = 0.001
    async with setup.open() as tiers:
        events = [event async for event in await answer(tiers.tiers["fast"], asked(stop=("two t",)))]
    assert said(events) == "A gateway speaks to "
    engine = setup.launch.engines[0]
    assert engine.aborted == [engine.requests[0].id]
    last = finish(events)
    assert (last.reason, last.stop) == ("stop", "two t")
    assert last.usage.cached_tokens == 2, "the engine's own count"
    spoken = setup.tokenizer.encode("A gateway speaks to two t").ids
    assert last.usage.completion_tokens == len(spoken), "not how far the engine ran before it heard of the stop"


async def test_an_engine_that_never_confirms_an_abort_does_not_hold_the_answer(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiergate.tiers.generation.ABORT_WAIT", 0.05)
    setup.script = setup.saying("one two three", hangs=True)
    async with setup.open() as tiers:
        monkeypatch.setattr("tiergate.tiers.engine_client.EngineClient.abort", lambda self, id: None)
        events = [event async for event in await answer(tiers.tiers["fast"], asked(stop=("two",)))]
        assert (said(events), finish(events).stop) == ("one ", "two")
        assert finish(events).usage.completion_tokens > 0
        stream = await answer(tiers.tiers["fast"])
        await anext(stream)
        await stream.aclose()
        assert stream.usage.completion_tokens > 0


async def test_leaving_early_aborts_and_counts(setup: Setup) -> None:
    setup.script = setup.saying(SAID, hangs=True)
    async with setup.open() as tiers:
        tier = tiers.tiers["fast"]
        stream = await answer(tier)
        await anext(stream)
        await until(lambda: tier.health().running == 1)
        await stream.aclose()
        engine = setup.launch.engines[0]
        assert engine.aborted == [engine.requests[0].id]
        assert stream.usage.prompt_tokens == len(engine.requests[0].token_ids)
        assert stream.usage.completion_tokens >= 1
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await stream.aclose()
        assert (tier.health().running, tier.health().waiting) == (0, 0)
        never = await answer(tier)
        await never.aclose()
        assert never.usage == Usage()
        assert len(engine.requests) == 1


async def test_cancelling_the_reader_aborts_at_once(setup: Setup) -> None:
    setup.script = setup.saying("Hm", hangs=True)
    async with setup.open() as tiers:
        stream = await answer(tiers.tiers["fast"])

        async def read() -> None:
            async for _ in stream:
                pass

        reader = asyncio.create_task(read())
        await until(lambda: tiers.tiers["fast"].health().running == 1)
        reader.cancel()
        engine = setup.launch.engines[0]
        await until(lambda: len(engine.aborted) == 1)
        await stream.aclose()
        assert stream.usage.completion_tokens == len(setup.script.ids)


@pytest.mark.parametrize("per_step", [1, 3])
async def test_an_answer_that_nobody_watches_is_the_same_in_fewer_events(setup: Setup, per_step: int) -> None:
    setup.script = setup.saying(SAID * 9, per_step=per_step)
    async with setup.open() as tiers:
        tier = tiers.tiers["fast"]
        for sampling in (Sampling(), Sampling(logprobs=1)):
            watched = await drain(await answer(tier, asked(sampling=sampling)))
            whole = await drain(await answer(tier, asked(sampling=sampling, whole=True)))
            assert said(whole) == said(watched)
            assert finish(whole) == finish(watched)
            assert tokens_of(whole) == tokens_of(watched)
            assert len(whole) < len(watched)


async def test_leaving_an_answer_that_nobody_watches_aborts_at_once(setup: Setup) -> None:
    setup.script = setup.saying(SAID, hangs=True)
    async with setup.open() as tiers:
        stream = await answer(tiers.tiers["fast"], asked(whole=True))
        reader = asyncio.create_task(drain(stream))
        engine = setup.launch.engines[-1]
        await until(lambda: stream.usage.completion_tokens > 0)
        reader.cancel()
        await asyncio.wait((reader,))
        await stream.aclose()
        assert len(engine.aborted) == 1
        assert stream.usage.completion_tokens == len(setup.script.ids)


async def test_log_probabilities(setup: Setup) -> None:
    async with setup.open() as tiers:
        request = asked(sampling=Sampling(logprobs=1))
        events = await drain(await answer(tiers.tiers["fast"], request))
    tokens = [token for event in events if isinstance(event, Text) for token in event.logprobs]
    assert b"".join(token.data for token in tokens).decode() == said(events) == SAID
    assert all(token.top == ((token.token, token.data, token.logprob),) for token in tokens)


async def test_tool_calls(setup: Setup) -> None:
    tool = ToolSpec(name="look")
    setup.script = setup.saying('hm<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>')
    async with setup.open() as tiers:
        request = asked(tools=(tool,))
        events = await drain(await answer(tiers.tiers["deep"], request, thinking=True))
        (called,) = (event for event in events if isinstance(event, Called))
        assert (called.call.name, called.call.arguments) == ("look", '{"at": "x"}')
        assert called.call.id.startswith("call_")
        assert finish(events).reason == "tool_calls"
        plain = asked(tools=(tool,), tool_choice="none")
        events = await drain(await answer(tiers.tiers["fast"], plain))
        assert said(events).startswith("hm<tool_call>")
        assert finish(events).reason == "stop"
    think = setup.launch.engines[0].requests[0].think
    assert think is not None
    call, end = (setup.tokenizer.token_to_id(marker) for marker in MARKERS[2:])
    assert (think.implicit_closers, think.call_closers) == (((call,),), ((end,),))


async def test_a_template_that_knows_no_tools_refuses_them(tmp_path: Path, tokenizer: Tokenizer) -> None:
    setup = Setup(write_chat_model(tmp_path / "plain", tokenizer, template=CHATML), tokenizer)
    async with setup.open() as tiers:
        with pytest.raises(BadPrompt, match="knows no tools") as refused:
            await tiers.tiers["fast"].prepare(asked(tools=(ToolSpec(name="look"),)), thinking=False)
        assert refused.value.param == "tools"
        unused = asked(tools=(ToolSpec(name="look"),), tool_choice="none")
        assert (await tiers.tiers["fast"].prepare(unused, thinking=False)).tokens > 0


async def test_a_call_cut_by_the_limit_does_not_come_out(setup: Setup) -> None:
    setup.script = setup.saying('x<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>')
    limits = Limits(max_tokens=8, hard=0, soft=None, answer_reserve=0)
    async with setup.open() as tiers:
        events = [
            event async for event in await answer(tiers.tiers["fast"], asked(tools=(ToolSpec(name="look"),)), limits)
        ]
    assert (said(events), finish(events).reason) == ("x", "length")
    assert not any(isinstance(event, Called) for event in events)


async def test_what_does_not_fit(setup: Setup) -> None:
    setup.specs["fast"] = TierSpec(model="m", context=100)
    async with setup.open() as tiers:
        tier = tiers.tiers["fast"]
        prompt = await tier.prepare(asked(), thinking=False)
        assert prompt.room == 100 - prompt.tokens
        with pytest.raises(ContextTooLong) as caught:
            await tier.prepare(asked(max_tokens=prompt.room + 1), thinking=False)
        error = caught.value
        assert (error.prompt_tokens, error.max_tokens, error.context) == (prompt.tokens, prompt.room + 1, 100)
        assert (await tier.prepare(asked(max_tokens=prompt.room), thinking=False)).tokens == prompt.tokens
        with pytest.raises(ContextTooLong):
            await tier.prepare(asked("long " * 100), thinking=False)
        with pytest.raises(ContextTooLong):
            await tier.prepare(asked("long " * 1_000_000), thinking=False)
        await drain(await answer(tier, limits=Limits(max_tokens=10**6, hard=0, soft=None, answer_reserve=0)))
        assert setup.launch.engines[0].requests[-1].sampling.max_tokens == prompt.room


async def test_ids_outside_the_vocabulary(setup: Setup) -> None:
    size = setup.tokenizer.get_vocab_size()
    async with setup.open() as tiers:
        tier = tiers.tiers["fast"]
        for sampling, param in (
            (Sampling(logit_bias={size: 1.0}), "logit_bias"),
            (Sampling(logit_bias={-1: 1.0}), "logit_bias"),
            (Sampling(stop_token_ids=(size,)), "stop_token_ids"),
        ):
            with pytest.raises(BadField, match=f"vocabulary of {size}") as caught:
                await tier.prepare(asked(sampling=sampling), thinking=False)
            assert caught.value.param == param
        await tier.prepare(asked(sampling=Sampling(logit_bias={size - 1: 1.0})), thinking=False)


async def test_long_prompts_do_not_hold_up_the_loop(setup: Setup) -> None:
    """They are encoded in a thread: the loop turns while that goes on."""
    setup.launch.context = 1 << 20
    async with setup.open() as tiers:
        tier = tiers.tiers["fast"]
        await tier.prepare(asked(), thinking=False)
        preparing = asyncio.create_task(tier.prepare(asked("some words " * 20_000), thinking=False))
        turns = 0
        while not preparing.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 2
        assert preparing.result().tokens > 20_000


FAILURES: dict[messages.FailCode, type[TierError]] = {
    "invalid": BadField,
    "too_long": ContextTooLong,
    "busy": TierUnavailable,
    "unknown_lane": TierUnavailable,
    "numeric": GenerationFailed,
    "internal": GenerationFailed,
}


@pytest.mark.parametrize("code", FAILURES)
async def test_failures_of_the_engine(setup: Setup, code: messages.FailCode) -> None:
    setup.script = Script(ids=[], fails=code)
    async with setup.open() as tiers:
        stream = await answer(tiers.tiers["fast"])
        with pytest.raises(FAILURES[code]):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        setup.script = Script(ids=setup.saying("Hm").ids, fails=code)
        stream = await answer(tiers.tiers["fast"])
        assert await anext(stream) == Start("fast", "m")
        assert stream.usage.completion_tokens >= 1
        with pytest.raises(FAILURES[code]):
            await drain(stream)
        assert stream.usage.completion_tokens == len(setup.script.ids)
        assert tiers.tiers["fast"].health().running == 0


async def test_an_engine_that_dies(setup: Setup) -> None:
    async with setup.open() as tiers:
        tier = tiers.tiers["fast"]
        setup.script = Script(ids=[], hangs=True)
        waiting = await answer(tier)
        first = asyncio.create_task(anext(waiting))  # type: ignore[arg-type]
        await until(lambda: len(setup.launch.engines[0].requests) == 1)
        assert tier.health().waiting == 1
        setup.script = setup.saying("Hm", hangs=True)
        running = await answer(tier)
        assert await anext(running) == Start("fast", "m")
        setup.launch.engines[0].crash()
        with pytest.raises(TierUnavailable):
            await first
        with pytest.raises(GenerationFailed):
            await drain(running)
        assert not tier.health().ready
        assert (tier.health().running, tier.health().waiting) == (0, 0)
        setup.script = setup.saying(SAID)
        assert said(await drain(await answer(tier))) == SAID
        assert len(setup.launch.engines) == 2
        assert tiers.ready()


async def test_a_tier_that_is_loading(setup: Setup) -> None:
    setup.launch.load_seconds = 0.3
    async with setup.open(load_wait=0.01) as tiers:
        tier = tiers.tiers["fast"]
        assert tier.health().reason == "the engine is starting"
        with pytest.raises(TierUnavailable, match="starting") as caught:
            await tier.prepare(asked(), thinking=False)
        assert (caught.value.tier, caught.value.retry_after) == ("fast", 2.0)
    async with setup.open(load_wait=10) as tiers:
        assert said(await drain(await answer(tiers.tiers["fast"]))) == SAID


async def test_a_tier_that_always_breaks_pauses(setup: Setup) -> None:
    now = 0.0
    async with setup.open(clock=lambda: now) as tiers:
        tier = tiers.tiers["fast"]
        setup.script = Script(ids=[], fails="internal")
        for _ in range(5):
            stream = await answer(tier)
            with pytest.raises(GenerationFailed):
                await anext(stream)
        assert not tier.health().ready
        assert tiers.tiers["deep"].health().ready
        with pytest.raises(TierUnavailable, match="pauses") as caught:
            await tier.prepare(asked(), thinking=False)
        assert caught.value.retry_after == 1.0
        now = 1.0
        setup.script = setup.saying(SAID)
        assert said(await drain(await answer(tier))) == SAID
        assert tier.health().ready


async def test_many_streams_at_once_and_some_that_leave(setup: Setup) -> None:
    setup.script = setup.saying(SAID)
    setup.launch.step = 0.002

    async def one(tier: Tier, index: int) -> str:
        stream = await answer(tier)
        if index % 3 == 0:
            await anext(stream)
            await stream.aclose()
            return SAID
        return said(await drain(stream))

    async with setup.open() as tiers:
        tier = tiers.tiers["fast"]
        answers = await asyncio.gather(*(one(tier, index) for index in range(64)))
        assert answers == [SAID] * 64
        assert (tier.health().running, tier.health().waiting) == (0, 0)
        assert setup.launch.engines[0].open_requests == 0


async def test_joining_an_engine_that_lacks_a_lane(setup: Setup) -> None:
    async with setup.open() as tiers:
        await answer(tiers.tiers["fast"])
        address = setup.launch.engines[0].address
        other = {"slow": TierSpec(model="m"), "fast": TierSpec(model="m")}
        joined = await open_tiers(other, EngineSpec(address=address), FakeModels(setup.folder))
        assert said(await drain(await answer(joined.tiers["fast"]))) == SAID
        with pytest.raises(TierUnavailable, match="does not serve slow"):
            await joined.tiers["slow"].prepare(asked(), thinking=False)
        assert not joined.ready()
        await joined.close()
        assert setup.launch.engines[0].alive
    assert len(setup.launch.engines) == 1


async def test_what_cannot_be_opened(setup: Setup, tmp_path: Path) -> None:
    for specs, models, message in (
        ({"a": TierSpec(kind="nothing")}, FakeModels(setup.folder), "called 'nothing'; there are: .*local"),
        ({"a": TierSpec(kind="../open")}, FakeModels(setup.folder), "there are"),
        ({"a": TierSpec(), "b": TierSpec()}, FakeModels(tmp_path), "tokenizer.json is missing"),
    ):
        with pytest.raises(ModelMissing, match=message):
            await open_tiers(specs, setup.spec, models, launch=setup.launch)
    assert setup.launch.engines == []
