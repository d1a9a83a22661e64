from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import pytest

from tiergate.budget import Limits
from tiergate.tiers import (
    Answer,
    Called,
    ChatRequest,
    ContextTooLong,
    Event,
    Finish,
    GenerationFailed,
    Message,
    Prompt,
    Rung,
    Sampling,
    Start,
    Text,
    Think,
    TierError,
    TierHealth,
    TierSpec,
    TierUnavailable,
    TokenLogprob,
    ToolCall,
    Usage,
    run_cascade,
)
from tiergate.tiers.escalate import EscalationRule
from tiergate.tiers.tier import Sink

LIMITS = Limits(max_tokens=64, hard=100, soft=50, answer_reserve=0)
REQUEST = ChatRequest(model="auto", messages=(Message(role="user", content="hi"),))
PROMPT = Prompt(tokens=3, room=100)
RULE = EscalationRule(hold_tokens=4, hold_seconds=5.0, repeats=3, judged_tokens=2)
CALL = ToolCall(id="c", name="f", arguments="{}")


class ScriptedAnswer:
    """Plays events; each costs a completion token, the prompt three."""

    def __init__(self, script: Sequence[Event | TierError]) -> None:
        self._script = list(script)
        self.usage = Usage()
        self.closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        await asyncio.sleep(0)
        if not self._script or self.closed:
            raise StopAsyncIteration
        event = self._script.pop(0)
        if isinstance(event, Exception):
            raise event
        self.usage = Usage(prompt_tokens=3, completion_tokens=self.usage.completion_tokens + 1)
        return replace(event, usage=self.usage) if isinstance(event, Finish) else event

    def follow(self, sink: Sink) -> bool:
        return False

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class ScriptedTier:
    name: str
    script: Sequence[Event | TierError]
    refusal: TierError | None = None
    spec: TierSpec = field(default_factory=TierSpec)
    seen: list[tuple[ChatRequest, Limits]] = field(default_factory=list)
    answers: list[ScriptedAnswer] = field(default_factory=list)
    model: str = "m"
    thinks: bool = True

    def health(self) -> TierHealth:
        return TierHealth(ready=True)

    async def prepare(self, request: ChatRequest, *, thinking: bool) -> Prompt:
        if self.refusal is not None:
            raise self.refusal
        return PROMPT

    def stream(self, request: ChatRequest, prompt: Prompt, limits: Limits) -> Answer:
        self.seen.append((request, limits))
        self.answers.append(ScriptedAnswer([Start(self.name, "m"), *self.script]))
        return self.answers[-1]

    async def close(self) -> None: ...


def finish(reason: str = "stop") -> Finish:
    return Finish(reason=reason, usage=Usage())  # type: ignore[arg-type]


def cascade(*tiers: ScriptedTier, request: ChatRequest = REQUEST, now: list[float] | None = None) -> Answer:
    rungs = [Rung(tier, thinking=tier.name == "deep") for tier in tiers]
    clock = [0.0] if now is None else now
    return run_cascade(rungs, request, PROMPT, LIMITS, rule=RULE, clock=lambda: clock[0])


async def played(answer: Answer) -> list[Event]:
    return [event async for event in answer]


def texts(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Text)]


GOOD = [Text("It "), Text("is "), Text("so."), finish()]
DEEP = [Think("hm"), Text("Deep."), finish()]


async def test_one_rung_streams_at_once() -> None:
    answer = cascade(ScriptedTier("fast", GOOD))
    assert [await anext(answer), await anext(answer)] == [Start("fast", "m"), Text("It ")]
    await answer.aclose()
    assert answer.usage == Usage(prompt_tokens=3, completion_tokens=2)


async def test_a_good_answer_stays() -> None:
    fast, deep = ScriptedTier("fast", GOOD), ScriptedTier("deep", DEEP)
    events = await played(cascade(fast, deep))
    assert texts(events) == ["It ", "is ", "so."]
    assert events[-1] == Finish(reason="stop", usage=Usage(prompt_tokens=3, completion_tokens=5))
    assert deep.answers == []


async def test_text_is_held_until_it_is_judged_and_streams_then() -> None:
    script = [Think("hm"), *(Text(f"{index} ") for index in range(6)), finish()]
    fast = ScriptedTier("fast", script)
    answer = cascade(fast, ScriptedTier("deep", DEEP))
    assert [await anext(answer), await anext(answer)] == [Start("fast", "m"), Think("hm")]
    assert await anext(answer) == Text("0 ")
    left = len(fast.answers[0]._script)
    assert left == 3, "four texts were looked at before the first left"
    assert [await anext(answer) for _ in range(4)] == [Text(f"{index} ") for index in range(1, 5)]


@pytest.mark.parametrize(
    "script",
    [
        [finish()],
        [Text(" \n"), finish()],
        [Text("no "), Text("no "), Text("no ")],
        [Text("x", (TokenLogprob("x", b"x", -9.0),)), Text("y", (TokenLogprob("y", b"y", -9.0),))],
        [GenerationFailed("broke")],
        [Think("hm"), Text("It "), GenerationFailed("broke")],
        [TierUnavailable("fast", "busy")],
    ],
)
async def test_climbs(script: list[Event | TierError]) -> None:
    fast, deep = ScriptedTier("fast", script), ScriptedTier("deep", DEEP)
    answer = cascade(fast, deep)
    events = await played(answer)
    assert events[-4:-1] == [Start("deep", "m"), Think("hm"), Text("Deep.")]
    assert texts(events) == ["Deep."]
    assert fast.answers[0].closed
    total = fast.answers[0].usage + deep.answers[0].usage
    assert events[-1] == Finish(reason="stop", usage=total)
    assert answer.usage == total


async def test_a_call_commits() -> None:
    fast = ScriptedTier("fast", [Called(0, CALL), finish("tool_calls")])
    assert (await played(cascade(fast, ScriptedTier("deep", DEEP))))[1] == Called(0, CALL)


async def test_after_the_first_text_the_tier_never_changes() -> None:
    script = [*(Text(f"{index} ") for index in range(5)), GenerationFailed("broke")]
    answer = cascade(ScriptedTier("fast", script), deep := ScriptedTier("deep", DEEP))
    assert len(texts([await anext(answer) for _ in range(6)])) == 5
    with pytest.raises(GenerationFailed):
        await anext(answer)
    assert deep.answers == []


async def test_the_last_rung_fails_as_it_is() -> None:
    answer = cascade(ScriptedTier("fast", [finish()]), ScriptedTier("deep", [GenerationFailed("broke")]))
    with pytest.raises(GenerationFailed):
        await played(answer)


async def test_a_rung_that_cannot_take_over_leaves_the_answer_as_it_is() -> None:
    refusal = ContextTooLong(prompt_tokens=9, max_tokens=None, context=8)
    fast, deep = ScriptedTier("fast", [Text("\n"), finish()]), ScriptedTier("deep", DEEP, refusal=refusal)
    events = await played(cascade(fast, deep))
    assert texts(events) == ["\n"]
    assert isinstance(events[-1], Finish)
    third = ScriptedTier("third", DEEP)
    assert texts(await played(cascade(fast, deep, third))) == ["Deep."]


async def test_a_failure_that_nobody_can_make_good_is_raised() -> None:
    fast = ScriptedTier("fast", [GenerationFailed("broke")])
    with pytest.raises(GenerationFailed, match="broke"):
        await played(cascade(fast, ScriptedTier("deep", DEEP, refusal=TierUnavailable("deep", "loading"))))


async def test_a_slow_tier_is_not_held_for_long() -> None:
    now = [0.0]
    answer = cascade(ScriptedTier("fast", [Text("a "), Text("b "), *GOOD]), ScriptedTier("deep", DEEP), now=now)
    await anext(answer)

    async def later() -> None:
        now[0] = 5.0

    first, _ = await asyncio.gather(anext(answer), later())
    assert first == Text("a ")


async def test_log_probabilities_are_asked_for_and_kept_private() -> None:
    text = Text("x", (TokenLogprob("x", b"x", -0.1),))
    script = [*[text] * 6, finish()]
    fast = ScriptedTier("fast", script)
    events = await played(cascade(fast, ScriptedTier("deep", DEEP)))
    assert fast.seen[0][0].sampling.logprobs == 0
    assert [event for event in events if isinstance(event, Text)] == [Text("x")] * 6
    request = replace(REQUEST, sampling=Sampling(logprobs=0))
    events = await played(cascade(ScriptedTier("fast", script), ScriptedTier("deep", DEEP), request=request))
    assert [event for event in events if isinstance(event, Text)] == [text] * 6


async def test_a_rung_without_thinking_gets_no_thinking_budget() -> None:
    fast, deep = ScriptedTier("fast", [finish()]), ScriptedTier("deep", DEEP)
    await played(cascade(fast, deep))
    assert (fast.seen[0][1].hard, fast.seen[0][1].soft) == (0, None)
    assert deep.seen[0][1] == LIMITS
    assert deep.seen[0][0] == REQUEST


async def test_closing_early_closes_the_rung_and_counts_all() -> None:
    fast, deep = ScriptedTier("fast", [finish()]), ScriptedTier("deep", DEEP)
    answer = cascade(fast, deep)
    while (event := await anext(answer)) != Think("hm"):
        assert not isinstance(event, Text)
    await answer.aclose()
    assert deep.answers[0].closed
    assert answer.usage == fast.answers[0].usage + deep.answers[0].usage
    with pytest.raises(StopAsyncIteration):
        await anext(answer)
