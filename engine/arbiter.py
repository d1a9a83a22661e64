"""Decides which lane steps next. Pure.

A lane's score is utilisation x weight x (1 + urgency), plus AGEING for every turn that it had work and another lane
went first. The product prefers the lane whose step does most; the ageing bounds every wait: a lane with work goes at
the latest after about n * (1 + 2 * w / AGEING) turns, n lanes, w the largest weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

AGEING = 0.25
URGENT_AFTER = 1.0
"""Seconds of waiting at which urgency is at its most."""


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """What a lane would do with the next turn."""

    has_work: bool
    utilisation: float
    """Part of a full step that it could fill, in [0, 1]."""
    weight: float
    """Its share of the machine relative to others; > 0."""
    waited: float
    """Seconds that the one who waits longest has waited: for the lane's next step, or in its queue."""
    turns: int
    """Turns it had work and was passed over since its latest step."""


def pick_lane(loads: Sequence[LaneLoad]) -> int | None:
    """Index of the lane to step, None when no lane has work. The first of equals wins."""
    best, best_score = None, 0.0
    for index, load in enumerate(loads):
        if load.has_work:
            value = score(load)
            if best is None or value > best_score:
                best, best_score = index, value
    return best


def score(load: LaneLoad) -> float:
    urgency = min(1.0, max(0.0, load.waited) / URGENT_AFTER)
    return load.utilisation * load.weight * (1.0 + urgency) + AGEING * load.turns
