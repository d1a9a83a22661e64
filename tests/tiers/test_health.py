from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiergate.tiers.health import Breaker, BreakerRule, BreakerState, failed, judge, succeeded, try_once

RULE = BreakerRule(failures=3, pause=1.0, longest=8.0)


def after(failures: int, now: float = 0.0) -> BreakerState:
    state = BreakerState()
    for _ in range(failures):
        state = failed(state, RULE, now)
    return state


def test_opens_at_the_last_failure_allowed() -> None:
    assert judge(after(2), 0.0) == "closed"
    assert judge(after(3), 0.0) == "open"


def test_a_success_in_between_starts_the_count_again() -> None:
    assert judge(failed(failed(succeeded(after(2)), RULE, 0.0), RULE, 0.0), 0.0) == "closed"


def test_a_trial_keeps_others_out_and_decides() -> None:
    state = after(3)
    assert judge(state, 0.99) == "open"
    assert judge(state, 1.0) == "trial"
    trying = try_once(state, RULE, 1.0)
    assert judge(trying, 1.0) == "open"
    assert judge(succeeded(trying), 1.0) == "closed"
    assert judge(failed(trying, RULE, 1.5), 3.4) == "open"
    assert judge(failed(trying, RULE, 1.5), 3.5) == "trial"


@given(st.integers(3, 200), st.floats(0, 1e6))
def test_the_pause_is_bounded(failures: int, now: float) -> None:
    state = after(failures, now)
    assert RULE.pause <= state.until - now + 1e-6
    assert state.until - now <= RULE.longest + 1e-6
    assert judge(state, state.until) == "trial"


def test_the_owner_admits_one_trial() -> None:
    now = 0.0
    breaker = Breaker(lambda: now, RULE)
    for _ in range(3):
        assert breaker.admit()
        breaker.failed()
    assert breaker.open
    assert not breaker.admit()
    assert breaker.retry_after == 1.0
    now = 1.0
    assert not breaker.open
    assert [breaker.admit(), breaker.admit()] == [True, False]
    breaker.succeeded()
    assert breaker.admit()
    assert breaker.retry_after == 0.0
