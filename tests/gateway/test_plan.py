from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.tier import FakeTier
from tiergate.budget import Limits, Tenant
from tiergate.gateway.call import Call
from tiergate.gateway.plan import Plan, default_thinking, make_plan, thinking, wanted, within
from tiergate.gateway.route import Route
from tiergate.tiers import (
    EFFORTS,
    BadField,
    ChatRequest,
    ContextTooLong,
    Message,
    ThinkingSpec,
    TierSpec,
    TierUnavailable,
)

REQUEST = ChatRequest(model="auto", messages=(Message(role="user", content="one two"),))
THINKER = TierSpec(model="x", max_tokens=500, thinking=ThinkingSpec(enabled=True, budget=64))


def tiers(**changes: object) -> dict[str, FakeTier]:
    fast = FakeTier("fast", spec=TierSpec(model="x", max_tokens=100))
    deep = FakeTier("deep", spec=THINKER, thinks=True)
    for name, value in changes.items():
        setattr(fast, name, value)
    return {"fast": fast, "deep": deep}


async def plan(request: ChatRequest = REQUEST, *ladder: str, choices: int = 1, **changes: object) -> Plan:
    route = Route(ladder or ("fast", "deep"), "why", "medium", 0.5)
    return await make_plan(Call(request=request, choices=choices), route, tiers(**changes), Tenant(id="t"))


async def test_the_worst_case_of_the_ladder_is_asked_for() -> None:
    made = await plan(choices=2)
    assert [(rung.tier.name, rung.thinking) for rung in made.rungs] == [("fast", False), ("deep", True)]
    ask = made.ask
    assert (ask.prompt_tokens, ask.choices, ask.attempts, ask.room) == (3, 2, 2, 997)
    assert (ask.default_max_tokens, ask.max_tokens, ask.thinking, ask.tier_thinking) == (500, None, None, 64)


async def test_a_tier_that_cannot_think_is_not_asked_to() -> None:
    made = await plan(replace(REQUEST, effort="high"), "fast")
    assert (made.ask.thinking, made.ask.tier_thinking, made.thinks) == (0, 0, False)


async def test_a_tier_that_is_away_or_too_small_is_left_out() -> None:
    for changes in ({"ready": False}, {"context": 3}):
        made = await plan(**changes)
        assert [rung.tier.name for rung in made.rungs] == ["deep"]
        assert made.ask.attempts == 1


async def test_the_last_tier_s_refusal_is_the_answer() -> None:
    with pytest.raises(TierUnavailable):
        await plan(REQUEST, "fast", ready=False)
    with pytest.raises(ContextTooLong) as failure:
        await plan(replace(REQUEST, max_tokens=998), "fast", "deep")
    assert (failure.value.prompt_tokens, failure.value.max_tokens, failure.value.context) == (3, 998, 1000)


async def test_a_mistake_in_the_request_is_no_reason_to_climb() -> None:
    with pytest.raises(BadField):
        await plan(replace(REQUEST, sampling=replace(REQUEST.sampling, logit_bias={999: 1.0})))


def test_efforts_are_the_tier_s_own() -> None:
    deep = FakeTier("deep", spec=replace(THINKER, thinking=ThinkingSpec(efforts={"low": 7})), thinks=True)
    assert wanted(replace(REQUEST, effort="low"), deep) == 7
    assert wanted(replace(REQUEST, effort="low", thinking=9), deep) == 9
    assert wanted(REQUEST, deep) is None
    with pytest.raises(BadField) as failure:
        wanted(replace(REQUEST, effort="max"), deep)
    assert failure.value.param == "reasoning_effort"


@given(
    effort=st.sampled_from([None, *EFFORTS]),
    tokens=st.none() | st.integers(0, 100),
    most=st.none() | st.integers(0, 100),
    default=st.none() | st.integers(0, 100),
    enabled=st.booleans(),
    thinks=st.booleans(),
)
def test_who_decides_whether_a_tier_thinks(
    effort: str | None, tokens: int | None, most: int | None, default: int | None, enabled: bool, thinks: bool
) -> None:
    tier = FakeTier("deep", spec=TierSpec(model="x", thinking=ThinkingSpec(enabled=enabled, budget=64)), thinks=thinks)
    request = replace(REQUEST, effort=effort, thinking=tokens)  # type: ignore[arg-type]
    says = thinking(request, tier, Tenant(id="t", max_thinking=most, default_thinking=default))
    if not thinks or most == 0:
        assert not says
    elif tokens is not None:
        assert says == (tokens > 0)
    elif effort is not None:
        assert says == (effort != "none")
    elif default is not None:
        assert says == (default > 0)
    else:
        assert says == enabled
    assert default_thinking(tier) == (64 if enabled and thinks else 0)


def limits(hard: int) -> Limits:
    return Limits(max_tokens=50, hard=hard, soft=None, answer_reserve=10)


async def test_closing_counts_for_the_tier_that_thinks() -> None:
    found = tiers()
    found["deep"].closing, found["fast"].closing = 9, 4
    route = Route(("fast", "deep"), "why", "medium", 0.5)
    assert (await make_plan(Call(request=REQUEST), route, found, Tenant(id="t"))).ask.closing == 9
    route = Route(("fast",), "why", "medium", 0.5)
    assert (await make_plan(Call(request=REQUEST), route, found, Tenant(id="t"))).ask.closing == 0


async def test_where_no_thinking_is_granted_no_thought_is_opened() -> None:
    made = await plan(REQUEST, "deep")
    assert made.prompt.opens_thinking
    assert await within(made, REQUEST, limits(5)) is made
    bare = await within(made, REQUEST, limits(0))
    assert not bare.thinks
    assert not bare.prompt.opens_thinking
    assert made.thinks
