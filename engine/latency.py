"""How long a step will take, learnt from the steps that were.

    seconds = weights(rows) + a * context + b * pairs

`weights` is a table over numbers of rows, linear in between; `context` counts the cached tokens that are read, `pairs`
the (query, key) pairs of prompt chunks. The logarithms of all of these parameters are tracked by an extended Kalman
filter (Anderson and Moore, Optimal Filtering, 1979, chapter 8): what one observation says about a parameter follows
from that parameter's share of the step, from how well it is known, and from what tends to change together. Neighbours
in the table do, so that a few numbers of rows tell of all; and at a slow random walk everything does, which is how a
machine whose own neighbours come and go is followed, with a half-life of about `HALF_LIFE` steps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_SHAPE = (1.0, 1.05, 1.1, 1.3, 1.8, 2.8, 5.0, 9.5, 18.5, 36.5)
"""How the table looks to begin with: bound by memory first, then linear. Its scale is unknown."""
_READ = 1 / 20e9
"""Seconds a byte of keys and values, to begin with."""
_MULTIPLY = 3e-12
"""Seconds a pair and byte of a token's keys and values, to begin with."""
_CONTEXT, _PAIRS, _SIZE = len(ROWS), len(ROWS) + 1, len(ROWS) + 2

HALF_LIFE = 20
"""Steps after which half of a change of the machine's pace is followed."""
_NOISE = 0.1
"""Of one observation: standard deviation, as all below of natural logarithms."""
_SCALE = 10.0
"""Of the table's scale, to begin with."""
_BENT = 0.7
"""Of an entry of the table against that scale, to begin with; entries next to each other correlate by `_KINSHIP`."""
_KINSHIP = 0.8
_ATTENTION = 1.0
"""Of the other parameters, to begin with."""
_WANDER = 0.003
"""Of a parameter's own change in a step."""
_MOST = 1.0
"""Largest error that an observation but the first may count with: a stall is not the rule."""
_FEW = 8
_LEAST = 1e-7
"""Seconds; no step is shorter."""


class Shape(NamedTuple):
    """What of a step its duration depends on."""

    rows: int
    """Tokens computed."""
    context: int = 0
    """Sum over sequences of the tokens in the cache."""
    pairs: int = 0
    """Sum over chunks of more than one token of length times mean context."""


class LatencyModel:
    """Owned by a lane. `known` is false until the first observation; nothing should be asked before."""

    def __init__(self, kv_bytes_per_token: int) -> None:
        self._count = 0
        self._values = [*_SHAPE, kv_bytes_per_token * _READ, kv_bytes_per_token * _MULTIPLY]
        """The parameters; `_logs` has their logarithms."""
        self._logs: Floats = np.log(self._values)
        self._spread = _prior()
        self._growth = _growth()

    @property
    def known(self) -> bool:
        return self._count > 0

    def predict(self, shape: Shape) -> float:
        """Seconds that a step of this shape takes."""
        values = self._values
        return self._weights(shape.rows) + values[_CONTEXT] * shape.context + values[_PAIRS] * shape.pairs

    @property
    def settled(self) -> bool:
        """Whether a few observations were made, so that the next need not be learnt from at once."""
        return self._count >= _FEW

    def observe(self, shape: Shape, seconds: float, steps: int = 1) -> None:
        """So many steps of about this shape took so long each, on average."""
        seconds = max(seconds, _LEAST)
        most = _MOST if self._count else math.inf
        if not self._count:  # twice, for shares are only right once the scale is
            self._update(shape, seconds, 1, most)
        self._update(shape, seconds, steps, most)
        self._spread += self._growth * steps
        self._count += 1

    def most_steps(self, shape: Shape, limit: float) -> int:
        """How many steps of this shape fit `limit` seconds, 1 at least."""
        return max(1, int(limit / self.predict(shape)))

    def largest_chunk(self, decoding: Shape, start: int, most: int, limit: float) -> int:
        """Most tokens of a prompt, `most` or fewer, from `start` on, that fit `limit` seconds beside `decoding`."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.predict(with_chunk(decoding, start, middle)) <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    def utilisation(self, shape: Shape, most: int) -> float:
        """Tokens a second of such a step, relative to the best that any step of up to `most` rows reaches; (0, 1]."""
        rates = [rows / self._values[place] for place, rows in enumerate(ROWS) if rows <= most]
        best = max((*rates, most / self._weights(most)))
        return min(1.0, shape.rows / self.predict(shape) / best)

    def _weights(self, rows: int) -> float:
        values = self._values
        if rows >= ROWS[-1]:
            return values[len(ROWS) - 1] * rows / ROWS[-1]
        at, over = _place(rows)
        return values[at] if not over else values[at] + (values[at + 1] - values[at]) * over

    def _update(self, shape: Shape, seconds: float, steps: int, most: float) -> None:
        expected = self.predict(shape)
        error = min(most, max(-most, math.log(seconds / expected)))
        shares = np.zeros(_SIZE)
        values = self._values
        shares[_CONTEXT] = values[_CONTEXT] * shape.context / expected
        shares[_PAIRS] = values[_PAIRS] * shape.pairs / expected
        at, over = _place(shape.rows)
        if over:
            shares[at] = values[at] * (1.0 - over) / expected
            shares[at + 1] = values[at + 1] * over / expected
        else:
            shares[at] = self._weights(shape.rows) / expected
        known = self._spread @ shares
        variance = float(known @ shares) + _NOISE * _NOISE / steps
        self._logs += known * (error / variance)
        self._spread -= np.outer(known, known / variance)
        self._values = np.exp(self._logs).tolist()


def with_chunk(shape: Shape, start: int, length: int) -> Shape:
    """The shape with a chunk of `length` tokens from position `start` on added; one token is a decode row."""
    pairs = length * (start + length // 2) if length > 1 else 0
    return Shape(shape.rows + length, shape.context + start + length, shape.pairs + pairs)


def _place(rows: int) -> tuple[int, float]:
    """Index in `ROWS` of the last entry not above `rows`, and how far towards the next one it is, in [0, 1)."""
    if rows >= ROWS[-1]:
        return len(ROWS) - 1, 0.0
    at = max(1, rows).bit_length() - 1
    return at, max(1, rows) / ROWS[at] - 1.0


def _prior() -> Floats:
    """Covariance of the logarithms before anything was observed, float64 [_SIZE, _SIZE]."""
    places = np.arange(len(ROWS))
    spread = np.diag(np.full(_SIZE, _ATTENTION**2))
    kinship = _KINSHIP ** np.abs(places[:, None] - places[None, :])
    spread[: len(ROWS), : len(ROWS)] = _SCALE**2 + _BENT**2 * kinship
    return spread


def _growth() -> Floats:
    """What a step adds to the covariance.

    The common part is such that the filter, in the long run, takes the share of an error for a change of pace that
    halves it in HALF_LIFE steps: for a random walk of variance q seen through noise of variance r, the gain k is the
    solution of k² / (1 - k) = q / r.
    """
    gain = 1.0 - 0.5 ** (1.0 / HALF_LIFE)
    pace = _NOISE**2 * gain**2 / (1.0 - gain)
    return np.full((_SIZE, _SIZE), pace) + np.diag(np.full(_SIZE, _WANDER**2))
