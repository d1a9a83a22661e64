"""Accepted drafts leave the stream of the plain run as it is, greedy and sampled; races with one noise agree often."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.sampling import rows_of
from tiergate.engine.speculate import accept
from tiergate.kernels import sample

VOCAB = 12


def logits_behind(ids: list[int]) -> torch.Tensor:
    """A model: float32 [VOCAB], of the last two tokens."""
    state = (ids[-1] * 31 + (ids[-2] if len(ids) > 1 else 0) * 17) % 1000
    return torch.from_numpy(np.random.default_rng(state).normal(size=VOCAB).astype(np.float32) * 2)


def draw(ids: list[int], row: dict[str, object]) -> int:
    return sample(logits_behind(ids)[None], rows_of({**row, "position": len(ids)}))[0]


def plain(prompt: list[int], count: int, row: dict[str, object]) -> list[int]:
    ids = list(prompt)
    while len(ids) < len(prompt) + count:
        ids.append(draw(ids, row))
    return ids


def speculated(
    prompt: list[int], count: int, row: dict[str, object], drafter: np.random.Generator
) -> tuple[list[int], int]:
    """With drafts some of which are what the model would say; the tokens, and how many steps they took."""
    ids, steps = list(prompt), 0
    while len(ids) < len(prompt) + count:
        ahead = plain(ids, 4, row)[len(ids) :]
        drafts = [token if drafter.random() < 0.7 else int(drafter.integers(VOCAB)) for token in ahead]
        drawn = [draw([*ids, *drafts[:i]], row) for i in range(len(drafts) + 1)]
        ids += drawn[: accept(drafts, drawn)]
        steps += 1
    return ids[: len(prompt) + count], steps


@given(drafts=st.lists(st.integers(0, 2), max_size=6), more=st.lists(st.integers(0, 2), min_size=1, max_size=7))
def test_accepts_the_right_drafts_and_one_token_more(drafts: list[int], more: list[int]) -> None:
    drawn = more[: len(drafts) + 1]
    count = accept(drafts, drawn)
    assert 1 <= count <= len(drawn)
    assert drawn[: count - 1] == drafts[: count - 1]
    assert count == len(drawn) or drafts[count - 1] != drawn[count - 1]


def test_unusable_logits_end_what_is_accepted() -> None:
    assert accept([1, 2, 3], [1, None, 3, 4]) == 2
    assert accept([1], [None]) == 1
    assert accept([], [5]) == 1


@pytest.mark.parametrize("row", [{"temperature": 0.0}, {}, {"temperature": 0.8, "top_p": 0.9}, {"top_k": 3}], ids=str)
def test_speculated_streams_are_the_plain_ones(row: dict[str, object]) -> None:
    fewer = 0
    for seed in range(20):
        row = {**row, "seed": seed}
        expected = plain([1, seed % VOCAB], 25, row)
        got, steps = speculated([1, seed % VOCAB], 25, row, np.random.default_rng(seed))
        assert got == expected
        fewer += steps < 25
    assert fewer == 20


def test_speculated_tokens_follow_the_distribution() -> None:
    """Pearson's chi-square of the third token over seeds, against its exact marginal."""
    counts, runs = np.zeros(VOCAB), 1500
    for seed in range(runs):
        got, _ = speculated([1, 2], 3, {"seed": seed}, np.random.default_rng(seed))
        counts[got[4]] += 1

    def step(ids: list[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.asarray(logits_behind(ids).double().softmax(0).numpy())

    expected = np.zeros(VOCAB)
    for a, of_a in enumerate(step([1, 2])):
        for b, of_b in enumerate(step([2, a])):
            expected += of_a * of_b * step([a, b])
    statistic = ((counts - runs * expected) ** 2 / (runs * expected)).sum()
    assert statistic < 31.3, "11 degrees of freedom, p < 0.001"


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), apart=st.floats(0.0, 2.0))
def test_drafts_with_the_targets_noise_agree_as_often_as_promised(seed: int, apart: float) -> None:
    rng = np.random.default_rng(seed)
    target = rng.normal(size=VOCAB).astype(np.float32) * 2
    drafter = target + (rng.normal(size=VOCAB) * apart).astype(np.float32)
    count = 600
    rows = rows_of(*({"seed": seed, "position": i} for i in range(count)))
    drawn = [np.array(sample(torch.from_numpy(np.tile(logits, (count, 1))), rows)) for logits in (target, drafter)]
    p, q = (np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in (target.astype(float), drafter.astype(float)))
    distance = np.abs(p - q).sum() / 2
    least = (1 - distance) / (1 + distance)
    assert (drawn[0] == drawn[1]).mean() >= least - 4 * (0.25 / count) ** 0.5
