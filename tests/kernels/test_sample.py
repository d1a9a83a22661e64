"""The sampling op against a plain reading of its contract, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.sampling import PARAMS, distribution, rows_of
from tiergate.kernels import NUMERIC, log_probabilities, sample
from tiergate.kernels.ops.sample import arrivals


@pytest.mark.parametrize("vocab", [1, 5, 256, 700])
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_draws_follow_the_distribution(vocab: int, params: dict[str, Any]) -> None:
    if "edits" in params:
        vocab += 8
    logits = np.random.default_rng(vocab).normal(size=vocab).astype(np.float32) * 2
    expected = distribution(logits, params)
    count = 1000
    table = torch.from_numpy(np.tile(logits, (count, 1)))
    drawn = sample(table, rows_of(*({**params, "seed": 11, "position": i} for i in range(count))))
    counts = np.bincount(drawn, minlength=vocab)
    assert not counts[expected == 0].any(), "a token that was cut came up"
    likely = expected > 5 / count
    error = (counts - count * expected)[likely] / np.sqrt(count * expected * (1 - expected) + 1)[likely]
    assert np.abs(error).max(initial=0) < 5, "more than five standard deviations off"
    assert np.array_equal(table[0].numpy(), logits), "logits were changed"


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    assert sample(logits, None) == [1, 0]
    assert sample(logits, rows_of({"temperature": 0.0}, {"temperature": 1e-6})) == [1, 0]


def test_ties_at_a_border_go_to_lower_ids() -> None:
    logits = torch.zeros((300, 6))
    assert set(sample(logits, rows_of(*({"top_k": 2, "position": i} for i in range(300))))) == {0, 1}
    assert set(sample(logits, rows_of(*({"top_p": 0.3, "position": i} for i in range(300))))) == {0, 1}


def test_a_draw_does_not_depend_on_the_batch() -> None:
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(rng.normal(size=(len(PARAMS), 500)).astype(np.float32))
    rows = [{**params, "seed": 5 + i, "position": 3 * i} for i, params in enumerate(PARAMS)]
    together = sample(logits, rows_of(*rows))
    alone = [sample(logits[i : i + 1], rows_of(row))[0] for i, row in enumerate(rows)]
    assert together == alone


def test_unusable_rows_are_named_and_others_unharmed() -> None:
    logits = torch.zeros((5, 4))
    logits[0, 1] = torch.nan
    logits[1, 2] = torch.inf
    logits[2] = -torch.inf
    logits[3, :3] = -torch.inf
    logits[4, 2] = 1.0
    expected = [NUMERIC, NUMERIC, NUMERIC, 3, 2]
    assert sample(logits, None) == expected
    assert sample(logits, rows_of(*[{"temperature": 0.0}] * 5)) == expected
    assert sample(logits, rows_of(*[{"temperature": 0.7, "top_k": 1}] * 5)) == expected


def test_a_row_with_every_token_banned_is_unusable() -> None:
    assert sample(torch.zeros((1, 2)), rows_of({"bans": (0, 1)})) == [NUMERIC]


def test_no_rows() -> None:
    assert sample(torch.empty((0, 8)), None) == []
    assert sample(torch.empty((0, 8)), rows_of()) == []


def test_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    logits = torch.tensor([[4.0, 3.0, -1.0], [-1.0, -1.5, -4.0]])
    rows = rows_of({"temperature": 0.0, "edits": {0: (2.0, 0.0)}}, {"temperature": 0.0, "edits": {0: (2.0, 0.0)}})
    assert sample(logits, rows) == [1, 1]


@given(st.integers(), st.integers(0, 1 << 40))
@settings(max_examples=100, deadline=None)
def test_arrivals_are_positive_and_belong_to_their_token(seed: int, position: int) -> None:
    every = arrivals(seed, position, np.arange(1000))
    assert every.dtype == np.float32
    assert np.isfinite(every).all()
    assert (every > 0).all()
    assert np.array_equal(arrivals(seed, position, np.array([999, 3, 500])), every[[999, 3, 500]])


@pytest.mark.parametrize("axis", ["seed", "position", "token"])
def test_arrivals_are_exponential_and_apart(axis: str) -> None:
    if axis == "token":
        times = arrivals(1, 2, np.arange(100_000)).reshape(100, 1000)
    elif axis == "seed":
        times = np.array([arrivals(seed, 9, np.arange(1000)) for seed in range(-50, 50)])
    else:
        times = np.array([arrivals(4, position, np.arange(1000)) for position in range(100)])
    counts = np.histogram(1 - np.exp(-times.astype(np.float64)), 20, (0, 1))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 45, "chi-square with 19 degrees of freedom, p < 0.001"
    for shifted, plain in ((times[:, :-1], times[:, 1:]), (times[:-1], times[1:])):
        assert abs(np.corrcoef(shifted.ravel(), plain.ravel())[0, 1]) < 0.02


def test_the_earliest_arrivals_are_as_early_as_they_should_be() -> None:
    """Float32 alone would end at 6e-8; the least of n numbers is Exp(1) / n."""
    least = np.array([arrivals(seed, 0, np.arange(1 << 16)).min() for seed in range(200)], np.float64) * (1 << 16)
    assert 0.75 < least.mean() < 1.25
    assert arrivals(0, 0, np.arange(1 << 22)).min() < 5e-6


def test_random_numbers_stay_what_they_are() -> None:
    """A seed gives the same text in every version."""
    expected = [1.9901133, 0.53507423, 0.28929308, 0.4161506, 0.14100094]
    assert arrivals(0, 0, np.arange(4)).tolist() == pytest.approx(expected[:4], rel=1e-6)
    assert arrivals(-1, 5, np.array([49151])).tolist() == pytest.approx(expected[4:], rel=1e-6)


def test_last_bits_of_logits_do_not_change_a_draw() -> None:
    rng = np.random.default_rng(8)
    logits = rng.normal(size=(400, 5000)).astype(np.float32) * 2
    rows = rows_of(*({"seed": 3, "position": i} for i in range(400)))
    noisy = logits + rng.normal(size=logits.shape).astype(np.float32) * 1e-5
    assert sample(torch.from_numpy(noisy), rows) == sample(torch.from_numpy(logits), rows)


@pytest.mark.parametrize("top", [0, 1, 3, 50])
def test_log_probabilities_match_torch(top: int) -> None:
    logits = torch.from_numpy(np.random.default_rng(top).normal(size=40).astype(np.float32)) * 5
    logits[7] = -torch.inf
    expected = logits.double().log_softmax(0)
    value, best = log_probabilities(logits, 11, top)
    assert value == pytest.approx(float(expected[11]), abs=1e-5)
    order = sorted(range(40), key=lambda i: (-float(logits[i]), i))[:top]
    assert [token for token, _ in best] == order
    assert [value for _, value in best] == pytest.approx([float(expected[i]) for i in order], abs=1e-5)
