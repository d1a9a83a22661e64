"""Draws the next token of each row of logits.

A draw is an exponential race (the Gumbel-max trick in another guise; Yellott, J. Math. Psychology 15, 1977): every
token gets a random time of arrival Exp(1) / weight and the first one wins. Times are counter-based and belong to
(seed, position, token), so a draw depends on nothing but its own row. They also make it robust: logits that differ in
their last bits, as those of one row in two batches may, change the winner only where two tokens all but tie, while
with an inverse transform they would move every border between 49 thousand tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..dispatch import op

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]

NUMERIC = -1
"""In place of a token: the row has a NaN or +inf, or no token left with a logit above -inf."""

_GREEDY_BELOW = 1e-5
_THRESHOLDS = (1e-2, 1e-4, 1e-7, 0.0)
_SPAN = 256
_EARLY = 1 << 24
"""Hashes below this, one in 256, get their time of arrival from float64."""
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRows:
    """Parameters of R rows, on the host. Applied in this order: edits, bans, temperature, top-k, top-p, min-p, draw."""

    temperature: Floats
    """[R]; below 1e-5 is greedy: the largest logit, of equals the lowest id."""
    top_k: Ints
    """[R]; 0 keeps all."""
    top_p: Floats
    """[R], in (0, 1]."""
    min_p: Floats
    """[R], in [0, 1]."""
    seeds: tuple[int, ...]
    """R of any size; taken modulo 2^64."""
    positions: tuple[int, ...]
    """R, from 0."""
    edit_starts: Ints
    """[R + 1]; row r's edits are entries edit_starts[r] to edit_starts[r + 1] of the three arrays below."""
    edit_ids: Ints
    """[E]; each at most once in a row."""
    edit_scales: Floats
    """[E]; divides a positive logit, multiplies another (CTRL, arXiv 1909.05858)."""
    edit_adds: Floats
    """[E]; added after that."""
    bans: dict[int, tuple[int, ...]]
    """By row: tokens that must not come."""


@op
def sample(logits: torch.Tensor, rows: SampleRows | None) -> list[int]:
    """logits float32 [R, vocab] → R token ids, or `NUMERIC` for a row without a usable one. None: all rows greedy.

    Logits are left as they are. -inf is a token that cannot come. Ties at a top-k or top-p border go to lower ids.
    """
    table = logits.detach().to("cpu").numpy()
    best = table.argmax(1)
    top = table[np.arange(len(table)), best]
    usable = np.isfinite(top)
    if rows is None:
        return np.where(usable, best, NUMERIC).tolist()  # type: ignore[no-any-return]
    starts = rows.edit_starts.tolist()
    every = np.arange(table.shape[1])
    chosen = []
    for r in range(len(table)):
        if not usable[r]:
            chosen.append(NUMERIC)
            continue
        row, peak, token = table[r], top[r], int(best[r])
        begin, end, bans = starts[r], starts[r + 1], rows.bans.get(r)
        if begin < end or bans:
            row = _edited(row, rows.edit_ids[begin:end], rows.edit_scales[begin:end], rows.edit_adds[begin:end], bans)
            token = int(row.argmax())
            peak = row[token]
            if not np.isfinite(peak):
                chosen.append(NUMERIC)
                continue
        temperature = rows.temperature[r]
        if temperature >= _GREEDY_BELOW:
            k, p, floor = int(rows.top_k[r]), float(rows.top_p[r]), float(rows.min_p[r])
            key = _key(rows.seeds[r], rows.positions[r])
            if 0 < k < len(row) or p < 1 or floor > 0:
                ids, weights = _survivors(row, peak, temperature, k, p, floor)
            else:
                ids, weights = every, _weights(row, peak, temperature)
            token = _race(key, ids, weights)
        chosen.append(token)
    return chosen


def log_probabilities(row: torch.Tensor, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    """Natural log-softmax of logits float32 [vocab] at `token`, and (id, value) of the `top` likeliest, best first."""
    values = row.detach().to("cpu").numpy()
    peak = values.max()
    total = float(peak) + float(np.log(np.exp(values - peak).sum(dtype=np.float64)))
    order = _largest(values, min(top, len(values)))
    return float(values[token]) - total, [(int(i), float(values[i]) - total) for i in order]


def arrivals(seed: int, position: int, ids: npt.NDArray[np.integer[Any]]) -> Floats:
    """Exp(1) random numbers of tokens, float32 [N] from ids [N] below 2^32; none is 0.

    With `mix` the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), key = mix(mix(seed) + (position + 1) *
    0x9E3779B97F4A7C15). A 32-bit finaliser (Wellons, "Prospecting for hash functions", 2018) over each id and the
    halves of the key gives h, and the number is -log(1 - v) of v = (h + 1/2) / 2^32.
    """
    return _times(_hashes(_key(seed, position), ids))


def _key(seed: int, position: int) -> int:
    return _mix(_mix(seed & _MASK) + (position + 1) * 0x9E3779B97F4A7C15 & _MASK)


def _hashes(key: int, ids: npt.NDArray[np.integer[Any]]) -> Hashes:
    h = ids.astype(np.uint32)
    h *= np.uint32(0x9E3779B9)
    h ^= np.uint32(key & 0xFFFFFFFF)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x7FEB352D)
    h ^= h >> np.uint32(15)
    h += np.uint32(key >> 32)
    h *= np.uint32(0x846CA68B)
    h ^= h >> np.uint32(16)
    return h


def _times(h: Hashes) -> Floats:
    early = np.flatnonzero(h < _EARLY)
    times = h.astype(np.float32)
    times += np.float32(0.5)
    times *= np.float32(-(2.0**-32))
    times += np.float32(1.0)
    # 1 - v has few digits left where v is small, and the smallest numbers are the ones that win races
    with np.errstate(divide="ignore"):  # 1 - v may round to 0
        np.log(times, out=times)
    np.negative(times, out=times)
    times[early] = -np.log1p((h[early].astype(np.float64) + 0.5) * -(2.0**-32))
    return times


def _race(key: int, ids: Ints, weights: Floats) -> int:
    """The token that arrives first."""
    times = _times(_hashes(key, ids))
    with np.errstate(divide="ignore", over="ignore"):  # a weight of (almost) 0 never arrives
        times /= weights
    return int(ids[times.argmin()])


def _mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def _edited(row: Floats, ids: Ints, scales: Floats, adds: Floats, bans: tuple[int, ...] | None) -> Floats:
    row = row.copy()
    if len(ids):
        old = row[ids]
        row[ids] = np.where(old > 0, old / scales, old * scales) + adds
    if bans:
        row[list(bans)] = -np.inf
    return row


def _weights(logits: Floats, peak: np.float32, temperature: np.float32) -> Floats:
    """float32, 1 for the largest logit."""
    weights: Floats = logits - peak
    weights /= temperature
    np.exp(weights, out=weights)
    return weights


def _level(peak: np.float32, temperature: np.float32, weight: float) -> float:
    """A logit that nothing of at least this weight lies below, rounding included."""
    return float(peak) + float(temperature) * (math.log(weight) - 1e-4) - 1e-4 * abs(float(peak))


def _survivors(
    row: Floats, peak: np.float32, temperature: np.float32, k: int, p: float, floor: float
) -> tuple[Ints, Floats]:
    """Ids that at least one cut leaves, and their weights."""
    if 0 < k < len(row):
        ids = _largest(row, k)
        weights = _weights(row[ids], peak, temperature)
        total = float(weights.sum(dtype=np.float64))
    elif p < 1:
        every = _weights(row, peak, temperature)
        total = float(_span_sums(every).sum())
        ids = _heaviest(every, p * total)
        weights = every[ids]
    else:
        ids, total = np.flatnonzero(row >= _level(peak, temperature, floor)), 0.0
        weights = _weights(row[ids], peak, temperature)
    if p < 1:  # heaviest first here
        count = int(np.searchsorted(np.cumsum(weights, dtype=np.float64), p * total)) + 1
        ids, weights = ids[:count], weights[:count]
    if floor > 0:
        enough = weights >= floor
        ids, weights = ids[enough], weights[enough]
    return ids, weights


def _span_sums(weights: Floats) -> npt.NDArray[np.float64]:
    """float64, the sum of each _SPAN entries in turn; the last may be of fewer."""
    whole = len(weights) // _SPAN * _SPAN
    spans = weights[:whole].reshape(-1, _SPAN) @ np.ones(_SPAN, np.float32)
    return np.append(spans, weights[whole:].sum(dtype=np.float32)).astype(np.float64)


def _largest(values: Floats, k: int) -> Ints:
    """Ids of the k largest, largest first, of equals the lower id first."""
    if k <= 0:
        return np.empty(0, np.int64)
    least = np.partition(values, len(values) - k)[len(values) - k]
    return _ordered(values, np.flatnonzero(values >= least))[:k]


def _heaviest(weights: Floats, mass: float) -> Ints:
    """Ids, heaviest first, that hold at least `mass` of the weight.

    Only those are sorted: they are found by lowering a threshold until enough is above it.
    """
    ids: Ints = np.empty(0, np.int64)
    for threshold in _THRESHOLDS:
        ids = np.flatnonzero(weights >= threshold)
        if weights[ids].sum(dtype=np.float64) >= mass:
            break
    return _ordered(weights, ids)


def _ordered(values: Floats, ids: Ints) -> Ints:
    """`ids`, given rising, by falling value."""
    return ids[np.argsort(-values[ids], kind="stable")]
