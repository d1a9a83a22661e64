"""The CPU core's sampler: the op's very draws, at every level, whoever shares the batch; statistics against float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.sampling import PARAMS, distribution, edited, may_be_drawn, rows_of
from tiergate.kernels import NUMERIC, sample
from tiergate.kernels.native_sample import NativeSampler, Records, sampling_of

LEVELS = {"scalar": 0, "avx2": 1, "avx512": 2}
VOCABS = [1, 2, 5, 16, 17, 255, 256, 257, 700, 4099]


@cache
def sampler(level: str, vocab: int, ranks: int = 1, threads: bool = False) -> NativeSampler:
    """Skips the test where this machine has no such level."""
    try:
        return NativeSampler(LEVELS[level], vocab, ranks=ranks, threads=threads)
    except ValueError as why:
        pytest.skip(str(why))


def draw(logits: Any, rows: list[dict[str, Any]], level: str = "avx512", *, logprobs: int = -1, **how: Any) -> Records:
    sampling = sampling_of(rows_of(*rows), logprobs=logprobs)
    return sampler(level, logits.shape[1], **how)(logits, sampling.records)


def normal(seed: int, rows: int, vocab: int, scale: float = 2.0) -> Any:
    return (np.random.default_rng(seed).normal(size=(rows, vocab)) * scale).astype(np.float32)


def model_like(seed: int, rows: int, vocab: int = 49152) -> Any:
    """A flat crowd with some tokens that stand out."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, vocab)) * 2
    logits[:, :60] += rng.exponential(4, size=(rows, 60)) + 4
    return rng.permuted(logits, axis=1).astype(np.float32)


def mixed(rows: int, vocab: int) -> list[dict[str, Any]]:
    """Rows of all kinds, some greedy."""
    kinds = [*PARAMS[: None if vocab >= 8 else -1], {"temperature": 0.0}]
    return [{**kinds[i % len(kinds)], "seed": 3 + i // 7, "position": 5 * i} for i in range(rows)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("vocab", VOCABS)
def test_draws_what_the_op_draws(level: str, vocab: int) -> None:
    logits, rows = normal(vocab, 260, vocab), mixed(260, vocab)
    drawn = draw(logits, rows, level)["token"]
    wanted = np.array(sample(torch.from_numpy(logits), rows_of(*rows)))
    assert all(may_be_drawn(logits[r], rows[r], int(drawn[r])) for r in np.flatnonzero(drawn != wanted))
    assert (drawn == wanted).mean() > 0.99


@pytest.mark.parametrize("level", LEVELS)
def test_draws_what_the_op_draws_from_a_models_vocabulary(level: str) -> None:
    kinds: list[dict[str, Any]] = [
        {"top_p": 0.95},
        {"top_p": 0.999999},
        {"top_k": 40, "top_p": 0.9},
        {"top_k": 20000},
        {"min_p": 0.02, "temperature": 1.7},
        {"temperature": 0.3},
        {"temperature": 5.0, "top_p": 0.4},
    ]
    logits = model_like(1, 21)
    logits[0, 5:300] = logits[1, 7:] = -np.inf
    rows = [{**kinds[r % len(kinds)], "seed": 1, "position": r} for r in range(len(logits))]
    drawn = draw(logits, rows, level)["token"].tolist()
    assert drawn == sample(torch.from_numpy(logits), rows_of(*rows))


def test_levels_draw_the_same_bits() -> None:
    for vocab in VOCABS:
        logits, rows = normal(vocab + 1, 130, vocab, 3.0), mixed(130, vocab)
        one, other = (draw(logits, rows, level, logprobs=4) for level in ("avx2", "avx512"))
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_the_number_of_threads_changes_nothing(ranks: int, threads: bool) -> None:
    for count in (0, 1, 2, 40):
        logits, rows = normal(count, count, 700), mixed(count, 700)
        shared = draw(logits, rows, logprobs=2, ranks=ranks, threads=threads)
        assert shared.tobytes() == draw(logits, rows, logprobs=2).tobytes()


def test_a_row_does_not_depend_on_the_batch() -> None:
    logits, rows = normal(9, 40, 1000), mixed(40, 1000)
    together = draw(logits, rows, logprobs=3)
    order = np.random.default_rng(2).permutation(40)
    assert draw(logits[order], [rows[i] for i in order], logprobs=3).tobytes() == together[order].tobytes()
    apart = np.full((40, 1100), np.nan, np.float32)
    apart[:, 50:1050] = logits
    assert draw(apart[:, 50:1050], rows, logprobs=3).tobytes() == together.tobytes()
    for r in range(40):
        assert draw(logits[r : r + 1], rows[r : r + 1], logprobs=3).tobytes() == together[r : r + 1].tobytes()


def test_logits_are_left_alone() -> None:
    logits = normal(4, 30, 300)
    before = logits.copy()
    draw(logits, mixed(30, 300), logprobs=5)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_draws_follow_the_distribution(params: dict[str, Any]) -> None:
    """Pearson's chi-square over the tokens that are likely enough, all others taken together."""
    count, logits = 20_000, normal(3, 1, 60)
    expected = distribution(logits[0], params) * count
    drawn = draw(np.repeat(logits, count, 0), [{**params, "seed": 17, "position": i} for i in range(count)])["token"]
    counts = np.bincount(drawn, minlength=60)
    assert not counts[expected == 0].any(), "a token that was cut came up"
    likely = expected >= 10
    got, wanted = np.append(counts[likely], counts[~likely].sum()), np.append(expected[likely], expected[~likely].sum())
    statistic = ((got - wanted) ** 2 / np.maximum(wanted, 1)).sum()
    freedom = int(likely.sum())
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5 + 8, "some four standard deviations off"


@pytest.mark.parametrize("level", LEVELS)
def test_unusable_rows_are_named_and_others_unharmed(level: str) -> None:
    logits = np.zeros((9, 20), np.float32)
    logits[0, 1] = np.nan
    logits[1, 17] = np.inf
    logits[2] = -np.inf
    logits[3, :19] = -np.inf
    logits[4, 2] = 1
    logits[5, 18] = -np.nan
    logits[6, 3] = np.nan
    rows: list[dict[str, Any]] = [{"temperature": 0.7, "top_k": 1 + r % 2} for r in range(9)]
    rows[4] = {"temperature": 0.0}
    rows[6] = {"bans": (3,)}
    rows[7] = {"bans": tuple(range(20))}
    rows[8] = {"edits": {4: (1.0, np.inf)}}
    chosen = draw(logits, rows, level, logprobs=1)
    assert chosen["token"].tolist() == [NUMERIC, NUMERIC, NUMERIC, 19, 2, NUMERIC, NUMERIC, NUMERIC, NUMERIC]
    assert chosen["token"].tolist() == sample(torch.from_numpy(logits), rows_of(*rows))
    lost = chosen[chosen["token"] == NUMERIC]
    assert not lost["logprob"].any()
    assert not lost["top_count"].any()


def test_ties_at_a_border_go_to_lower_ids() -> None:
    logits = np.zeros((300, 600), np.float32)
    for cut in ({"top_k": 2}, {"top_p": 0.003}):
        rows = [{**cut, "position": i} for i in range(300)]
        assert set(draw(logits, rows)["token"].tolist()) == {0, 1}
    assert draw(logits[:1], [{"temperature": 0.0}])["token"].tolist() == [0]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("vocab", [1, 2, 3, 40, 256, 5000])
def test_statistics_are_those_of_the_raw_logits(level: str, vocab: int) -> None:
    logits = normal(vocab, 12, vocab, 4.0)
    if vocab > 3:
        logits[1, 2:] = -np.inf
        logits[2] *= 0
    wild: dict[str, Any] = {"edits": {0: (1.0, 30.0)}} if vocab > 2 else {}
    rows = [
        {**wild, "temperature": 3.0, "seed": 4, "position": r, "bans": (2,) if vocab > 3 else ()} for r in range(12)
    ]
    chosen = draw(logits, rows, level, logprobs=7)
    expected = torch.from_numpy(logits).double().log_softmax(1)
    probabilities = expected.exp()
    entropy = -torch.where(probabilities > 0, probabilities * expected, 0.0).sum(1)
    two = probabilities.topk(min(2, vocab), 1).values
    margin = two[:, 0] - (two[:, 1] if vocab > 1 else 0)
    for r, row in enumerate(chosen):
        assert row["logprob"] == pytest.approx(float(expected[r, row["token"]]), abs=2e-5, rel=1e-6)
        assert row["entropy"] == pytest.approx(float(entropy[r]), abs=2e-5, rel=1e-5)
        assert row["margin"] == pytest.approx(float(margin[r]), abs=2e-6)
        order = sorted(range(vocab), key=lambda i: (-logits[r, i], i))[:7]
        assert row["top_count"] == len(order)
        assert row["top_ids"][: len(order)].tolist() == order
        assert row["top_logprobs"][: len(order)] == pytest.approx(expected[r, order].numpy(), abs=2e-5, rel=1e-6)


def test_no_more_likeliest_tokens_than_there_is_room_for() -> None:
    chosen = draw(normal(0, 2, 100), [{}, {}], logprobs=1000)
    assert chosen["top_count"].tolist() == [32, 32]
    assert chosen["top_ids"].shape == (2, 32)


def test_statistics_cost_nothing_where_nobody_asks() -> None:
    chosen = draw(normal(0, 5, 100), [{"position": r} for r in range(5)])
    for name in ("logprob", "entropy", "margin", "top_count"):
        assert not chosen[name].any()


def test_a_forced_token_comes_with_its_own_statistics() -> None:
    logits = normal(0, 3, 100)
    logits[2, 4] = np.nan
    sampling = sampling_of(rows_of({}, {"temperature": 0.0, "bans": (9,)}, {}), logprobs=0)
    sampling.records["forced"] = 9
    chosen = sampler("avx512", 100)(logits, sampling.records)
    assert chosen["token"].tolist() == [9, 9, NUMERIC]
    expected = torch.from_numpy(logits[:2]).double().log_softmax(1)[:, 9].numpy()
    assert chosen["logprob"][:2] == pytest.approx(expected, abs=1e-5)


LOGITS = st.one_of(
    st.sampled_from([np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-40, -1e-40, 0.0, -0.0, 1e30]),
    st.floats(-40, 40, width=32),
)
SHAPES = st.integers(1, 80)


@given(
    data=st.data(),
    vocab=SHAPES,
    temperature=st.sampled_from([0.0, 9e-6, 1e-5, 1e-3, 0.7, 1.0, 2.5, 1e3, 1e6]),
    top_k=st.sampled_from([0, 1, 2, 7, 40, 1000]),
    top_p=st.sampled_from([1.0, 1 - 2**-24, 0.9, 0.5, 1e-3, 1e-30, 1e-44]),
    min_p=st.sampled_from([0.0, 1e-44, 1e-6, 0.1, 0.999, 1.0]),
    level=st.sampled_from(sorted(LEVELS)),
)
@settings(max_examples=400, deadline=None)
def test_whatever_the_numbers_are(data: Any, vocab: int, level: str, **params: Any) -> None:
    sane = data.draw(st.booleans())
    values = st.floats(-40, 40, width=32) if sane else LOGITS
    logits = np.array(data.draw(st.lists(values, min_size=vocab, max_size=vocab)), np.float32)
    row = {**params, "seed": data.draw(st.integers(-(2**63), 2**64)), "position": data.draw(st.integers(0, 2**40))}
    bans = data.draw(st.sets(st.integers(0, vocab - 1), max_size=3))
    if bans:
        row["bans"] = tuple(bans)
    token = int(draw(logits[None], [row], level, logprobs=2)["token"][0])
    logits[np.abs(logits) < np.finfo(np.float32).tiny] = 0  # denormals are zero to the core
    usable = not np.isnan(logits).any() and np.isfinite(logits.max()) and np.isfinite(edited(logits, row).max())
    assert (token == NUMERIC) == (not usable)
    if usable:
        assert may_be_drawn(logits, row, token)
