"""The plain policy: wishes by specificity, bounds by tightness."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tiergate.budget import Ask, Limits, Tenant
from tiergate.budget.policies.fixed import decide

tokens = st.integers(0, 20_000)
maybe = st.none() | tokens
tenants = st.builds(
    Tenant,
    id=st.just("a"),
    mode=st.sampled_from(["hard", "soft"]),
    max_thinking=maybe,
    default_thinking=maybe,
    max_tokens=st.none() | st.integers(1, 20_000),
    answer_reserve=tokens,
)
asks = st.builds(
    Ask,
    prompt_tokens=tokens,
    choices=st.integers(1, 8),
    attempts=st.integers(1, 2),
    max_tokens=st.none() | st.integers(1, 20_000),
    room=tokens,
    default_max_tokens=st.integers(1, 4096),
    thinking=maybe,
    soft=st.booleans(),
    closing=st.integers(0, 40),
    tier_thinking=tokens,
)


def plain(**fields: Any) -> Ask:
    return replace(Ask(prompt_tokens=10, room=10_000, default_max_tokens=1024, tier_thinking=256), **fields)


@given(tenants, asks)
def test_no_bound_is_ever_passed(tenant: Tenant, ask: Ask) -> None:
    limits = decide(tenant, ask)
    assert limits.hard is not None
    assert limits.max_tokens >= 1
    for bound in (ask.max_tokens, tenant.max_tokens, max(ask.room, 1)):
        assert bound is None or limits.max_tokens <= bound
    assert limits.hard == 0 or limits.hard <= limits.max_tokens - limits.answer_reserve - ask.closing
    assert tenant.max_thinking is None or limits.hard <= tenant.max_thinking
    assert limits.answer_reserve <= tenant.answer_reserve
    if tenant.answer_reserve:
        assert limits.answer_reserve >= 1
    if limits.soft is not None:
        assert 0 < limits.soft <= limits.hard <= limits.soft * 1.25 + 1


def test_closing_a_thought_is_paid_by_the_thought() -> None:
    tenant = Tenant(id="a", answer_reserve=20)
    hard = {cap: decide(tenant, plain(max_tokens=cap, thinking=50, closing=10)).hard for cap in (20, 30, 60, 100)}
    assert hard == {20: 0, 30: 5, 60: 30, 100: 50}


@given(tenants, asks, st.integers(0, 20_000))
def test_a_request_can_only_lower_what_its_tenant_may(tenant: Tenant, ask: Ask, wish: int) -> None:
    most = decide(tenant, replace(ask, thinking=10**9, max_tokens=10**9, soft=True))
    mine = decide(tenant, replace(ask, thinking=wish))
    assert mine.max_tokens <= most.max_tokens
    assert mine.hard is not None
    assert most.hard is not None
    assert mine.hard <= most.max_tokens
    if tenant.max_thinking is not None:
        assert mine.hard <= tenant.max_thinking


@given(tenants, asks)
def test_a_larger_wish_never_gets_less(tenant: Tenant, ask: Ask) -> None:
    wish = ask.thinking or 0
    less, more = (decide(tenant, replace(ask, thinking=wish + n)) for n in (0, 1))
    assert less.hard is not None
    assert more.hard is not None
    assert less.hard <= more.hard


def test_the_request_wins_over_the_tenant_and_the_tenant_over_the_tier() -> None:
    tenant = Tenant(id="a", default_thinking=300)
    assert decide(Tenant(id="a"), plain()).hard == 256
    assert decide(tenant, plain()).hard == 300
    assert decide(tenant, plain(thinking=200)).hard == 200
    assert decide(tenant, plain(thinking=0)).hard == 0
    assert decide(replace(tenant, max_thinking=100), plain(thinking=200)).hard == 100


def test_the_cap_is_the_clients_or_the_default_within_context_and_tenant() -> None:
    tenant = Tenant(id="a", max_tokens=2000)
    assert decide(tenant, plain()).max_tokens == 1024
    assert decide(tenant, plain(max_tokens=1500)).max_tokens == 1500
    assert decide(tenant, plain(max_tokens=5000)).max_tokens == 2000
    assert decide(tenant, plain(max_tokens=5000, room=77)).max_tokens == 77


def test_a_small_cap_is_shared_between_thinking_and_answer() -> None:
    tenant = Tenant(id="a")
    assert decide(tenant, plain(max_tokens=20)) == Limits(max_tokens=20, hard=10, soft=None, answer_reserve=10)
    assert decide(tenant, plain(max_tokens=1)) == Limits(max_tokens=1, hard=0, soft=None, answer_reserve=1)
    assert decide(tenant, plain(max_tokens=1000, thinking=900)).hard == 872


def test_an_aim_is_cut_a_quarter_beyond_it() -> None:
    tenant = Tenant(id="a", mode="soft")
    assert decide(tenant, plain(thinking=400)) == Limits(max_tokens=1024, hard=500, soft=400, answer_reserve=128)
    assert decide(Tenant(id="a"), plain(thinking=400, soft=True)).soft == 400
    assert decide(replace(tenant, max_thinking=450), plain(thinking=400)).hard == 450
    assert decide(tenant, plain(thinking=0)) == Limits(max_tokens=1024, hard=0, soft=None, answer_reserve=128)
