"""Whose step is next."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergate.engine.arbiter import AGEING, LaneLoad, pick_lane

BUSY = LaneLoad(has_work=True, utilisation=0.5, weight=1.0, waited=0.0, turns=0)


@pytest.mark.parametrize(
    "better",
    [replace(BUSY, utilisation=0.6), replace(BUSY, weight=2.0), replace(BUSY, waited=0.5), replace(BUSY, turns=1)],
)
def test_each_reason_counts(better: LaneLoad) -> None:
    assert pick_lane([BUSY, better]) == 1
    assert pick_lane([better, BUSY]) == 0


def test_only_lanes_with_work_step() -> None:
    idle = replace(BUSY, has_work=False, weight=100.0, turns=100)
    assert pick_lane([idle, replace(BUSY, utilisation=0.0)]) == 1
    assert pick_lane([idle]) is None
    assert pick_lane([]) is None


def test_the_first_of_equals() -> None:
    assert pick_lane([BUSY, BUSY]) == 0


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 4), st.floats(0, 9)), min_size=1, max_size=5))
@settings(max_examples=100, deadline=None)
def test_no_lane_starves(lanes: list[tuple[float, float, float]]) -> None:
    loads = [LaneLoad(True, utilisation, weight, waited, 0) for utilisation, weight, waited in lanes]
    bound = len(lanes) * (1 + math.ceil(2 * max(weight for _, weight, _ in lanes) / AGEING))
    for _ in range(200):
        picked = pick_lane(loads)
        loads = [replace(load, turns=0 if index == picked else load.turns + 1) for index, load in enumerate(loads)]
        assert max(load.turns for load in loads) <= bound


def test_shares_follow_weights() -> None:
    loads = [replace(BUSY, weight=3.0), replace(BUSY, weight=1.0)]
    turns = [0, 0]
    for _ in range(100):
        picked = pick_lane(loads)
        assert picked is not None
        turns[picked] += 1
        loads = [replace(load, turns=0 if i == picked else load.turns + 1) for i, load in enumerate(loads)]
    assert turns[0] > 2 * turns[1] > 0
