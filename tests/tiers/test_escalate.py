from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiergate.tiers.escalate import EscalationRule, Signals, decide, repeats

RULE = EscalationRule(hold_tokens=8, hold_seconds=2.0, min_logprob=-3.0, judged_tokens=4, repeats=4)


@pytest.mark.parametrize(
    ("signals", "verdict"),
    [
        (Signals(text="Yes", tokens=1, seconds=0.0), "hold"),
        (Signals(text="Yes", tokens=8, seconds=0.0), "commit"),
        (Signals(text="Yes", tokens=1, seconds=2.0), "commit"),
        (Signals(text="Yes", tokens=1, seconds=0.0, finished=True), "commit"),
        (Signals(text="", tokens=0, seconds=0.0, finished=True), "climb"),
        (Signals(text=" \n", tokens=1, seconds=0.0, finished=True), "climb"),
        (Signals(text="", tokens=0, seconds=0.0, called=True), "commit"),
        (Signals(text="no no no no", tokens=4, seconds=0.0), "climb"),
        (Signals(text="Yes", tokens=3, seconds=0.0, logprobs=(-9.0,) * 3), "hold"),
        (Signals(text="Yes", tokens=4, seconds=0.0, logprobs=(-9.0,) * 4), "climb"),
        (Signals(text="Yes", tokens=8, seconds=0.0, logprobs=(-2.0,) * 8), "commit"),
    ],
)
def test_decisions(signals: Signals, verdict: str) -> None:
    assert decide(signals, RULE) == verdict


signals = st.builds(
    Signals,
    text=st.text("ab \n", max_size=20),
    tokens=st.integers(0, 50),
    seconds=st.floats(0, 10),
    logprobs=st.lists(st.floats(-20, 0), max_size=10).map(tuple),
    called=st.booleans(),
    finished=st.booleans(),
)


@given(signals)
def test_nothing_is_held_for_ever(signals: Signals) -> None:
    if signals.finished or signals.called or signals.tokens >= RULE.hold_tokens or signals.seconds >= RULE.hold_seconds:
        assert decide(signals, RULE) != "hold"


@pytest.mark.parametrize("text", ["a b a b a b a b", "x y z. x y z. x y z. x y z.", "well, so so so so"])
def test_degenerate(text: str) -> None:
    assert repeats(text, 4)


@pytest.mark.parametrize("text", ["", "a a a", "1 1 1 1 1", "- - - - - -", "a b a b a b c", "so so so so well"])
def test_not_degenerate(text: str) -> None:
    assert not repeats(text, 4)


@given(st.lists(st.sampled_from(["aa", "bb", "cc"]), min_size=1, max_size=5), st.text("xyz ", max_size=10))
def test_any_phrase_said_often_enough_is_degenerate(phrase: list[str], before: str) -> None:
    assert repeats(" ".join([before, *phrase * 4]), 4)
