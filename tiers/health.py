"""Keeps requests away from a tier that breaks on each of them (a circuit breaker)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

Verdict = Literal["closed", "open", "trial"]
"""`closed`: all is well; `open`: nobody may try; `trial`: one may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRule:
    failures: int = 5
    """Failures in a row that open it."""
    pause: float = 1.0
    """Seconds before the first trial; doubles with each trial that fails."""
    longest: float = 30.0


@dataclass(frozen=True, slots=True)
class BreakerState:
    failures: int = 0
    """In a row."""
    openings: int = 0
    """In a row: each failed trial is one more."""
    until: float = 0.0
    """When the next trial may begin, on the owner's clock, in seconds; counts while `openings`."""


def judge(state: BreakerState, now: float) -> Verdict:
    if not state.openings:
        return "closed"
    return "trial" if now >= state.until else "open"


def try_once(state: BreakerState, rule: BreakerRule, now: float) -> BreakerState:
    """A trial begins: nobody else may try until it can be expected to have ended."""
    return replace(state, until=now + _pause(state.openings, rule))


def succeeded(state: BreakerState) -> BreakerState:
    """An answer ended in order, which proves the tier whole."""
    return state if state == BreakerState() else BreakerState()


def failed(state: BreakerState, rule: BreakerRule, now: float) -> BreakerState:
    failures = state.failures + 1
    if failures < rule.failures:
        return replace(state, failures=failures)
    openings = state.openings + 1
    return BreakerState(failures, openings, now + _pause(openings, rule))


def _pause(openings: int, rule: BreakerRule) -> float:
    return min(rule.pause * 2.0 ** min(openings - 1, 16), rule.longest)


class Breaker:
    """Owns one tier's state."""

    def __init__(self, clock: Callable[[], float], rule: BreakerRule | None = None) -> None:
        """`clock` in seconds, never going back."""
        self._clock = clock
        self._rule = rule or BreakerRule()
        self._state = BreakerState()

    @property
    def open(self) -> bool:
        """Requests should go elsewhere. A snapshot: looking changes nothing."""
        return judge(self._state, self._clock()) == "open"

    @property
    def retry_after(self) -> float:
        """Seconds until a trial."""
        return max(self._state.until - self._clock(), 0.0) if self._state.openings else 0.0

    def admit(self) -> bool:
        """Whether a request may begin now; the one that is let through as a trial keeps others out meanwhile."""
        now = self._clock()
        verdict = judge(self._state, now)
        if verdict == "trial":
            self._state = try_once(self._state, self._rule, now)
        return verdict != "open"

    def succeeded(self) -> None:
        self._state = succeeded(self._state)

    def failed(self) -> None:
        self._state = failed(self._state, self._rule, self._clock())
