"""The gate gives drafts where they pay by its own formula, and only there."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiergate.engine.draft_gate import GAIN, MOST, PRIOR, SIZES, expected, learn, share_out

RATES = st.floats(0, 1)
BIDS = st.lists(st.tuples(RATES, st.integers(1, MOST)), max_size=6)


def flat(rows: int) -> float:
    return 1.0


def linear(rows: int) -> float:
    return float(rows)


def gentle(rows: int) -> float:
    """Memory-bound to 16 rows or so."""
    return 1 + rows / 30


@given(RATES, st.integers(0, 8))
def test_expected_tokens_are_the_sum_over_how_far_drafts_are_right(rate: float, size: int) -> None:
    chances = [rate**n * (1 - rate if n < size else 1) for n in range(size + 1)]
    assert expected(rate, size) == pytest.approx(sum((n + 1) * chance for n, chance in enumerate(chances)))


@given(BIDS, st.integers(6, 64))
def test_nothing_is_given_where_every_row_costs_as_much_as_a_token(bids: list[tuple[float, int]], rows: int) -> None:
    assert not any(share_out(bids, rows, linear))


@given(BIDS, st.integers(6, 64))
def test_nobody_gets_more_than_was_offered_or_between_sizes(bids: list[tuple[float, int]], rows: int) -> None:
    for size, (_, offered) in zip(share_out(bids, rows, gentle), bids, strict=True):
        assert size in (0, *SIZES)
        assert size <= offered


@given(BIDS, st.integers(6, 64), st.floats(0, 0.2), st.floats(0, 0.5))
def test_what_is_given_makes_the_step_faster(
    bids: list[tuple[float, int]], rows: int, cost: float, overhead: float
) -> None:
    sizes = share_out(bids, rows, gentle, overhead=overhead, draft_seconds=cost)
    tokens = rows + sum(expected(rate, size) - 1 for (rate, _), size in zip(bids, sizes, strict=True))
    seconds = gentle(rows + sum(sizes)) + overhead + cost * sum(sizes)
    if any(sizes):
        assert tokens / seconds >= rows / gentle(rows) * GAIN * (1 - 1e-12)


@given(RATES, st.integers(1, 64))
def test_alone_it_is_the_best_size_of_the_formula(rate: float, rows: int) -> None:
    size = share_out([(rate, MOST)], rows, gentle)[0]

    def speed(size: int) -> float:
        return (rows - 1 + expected(rate, size)) / gentle(rows + size)

    best = max((0, *SIZES), key=speed)
    assert size == (best if speed(best) > speed(0) * GAIN else 0)


def test_a_step_that_costs_the_same_takes_all_that_is_sure() -> None:
    assert share_out([(1.0, 8), (1.0, 5), (0.0, 8)], 3, flat) == [8, 4, 0]


def test_what_a_draft_costs_counts() -> None:
    assert share_out([(0.8, 8)], 1, flat) == [8]
    assert share_out([(0.8, 8)], 1, flat, draft_seconds=0.3)[0] < 8
    assert share_out([(0.8, 8)], 1, flat, draft_seconds=1.0) == [0]
    assert share_out([(0.8, 8)], 1, flat, overhead=2.0) == [8]
    assert share_out([(0.8, 8)], 1, flat, overhead=4.0) == [0]


@given(RATES, st.integers(0, 8), st.data())
def test_a_rate_stays_one_and_follows_what_happened(rate: float, drafted: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, drafted))
    after = learn(rate, drafted, right)
    assert 0 <= after <= 1
    if right == drafted:
        assert after >= rate - 1e-12
    if right == 0 and drafted:
        assert after <= rate + 1e-12


def test_the_latest_drafts_decide() -> None:
    good = bad = PRIOR
    for _ in range(30):
        good, bad = learn(good, 2, 2), learn(bad, 2, 0)
    assert good > 0.95
    assert bad < 0.05
    falling = [good]
    for _ in range(20):
        falling.append(learn(falling[-1], 2, 0))
    assert all(later < earlier for earlier, later in pairwise(falling))
    assert falling[-1] < 0.1
