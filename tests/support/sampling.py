"""Parameters of sampled rows, and what they mean by the book."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tiergate.kernels import SampleRows
from tiergate.kernels.ops.sample import arrivals

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

PARAMS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 5000},
    {"top_p": 0.5},
    {"top_p": 1e-6},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.7, "min_p": 0.05, "temperature": 1.3},
    {"edits": {3: (1.0, 4.0), 7: (2.0, -1.0), 0: (1.0, -100.0)}, "bans": (1, 2)},
]
"""One of each kind, as `rows_of` takes them. The last one needs 8 tokens."""


def rows_of(*rows: dict[str, Any]) -> SampleRows:
    """One dict a row; what it leaves out is neutral. `edits` is {id: (scale, add)}."""
    edits = [row.get("edits", {}) for row in rows]
    flat = [(token, *change) for changes in edits for token, change in changes.items()]
    return SampleRows(
        temperature=np.array([row.get("temperature", 1.0) for row in rows], np.float32),
        top_k=np.array([row.get("top_k", 0) for row in rows], np.int64),
        top_p=np.array([row.get("top_p", 1.0) for row in rows], np.float32),
        min_p=np.array([row.get("min_p", 0.0) for row in rows], np.float32),
        seeds=tuple(row.get("seed", 0) for row in rows),
        positions=tuple(row.get("position", 0) for row in rows),
        edit_starts=np.cumsum([0, *map(len, edits)]),
        edit_ids=np.array([token for token, _, _ in flat], np.int64),
        edit_scales=np.array([scale for _, scale, _ in flat], np.float32),
        edit_adds=np.array([add for _, _, add in flat], np.float32),
        bans={r: row["bans"] for r, row in enumerate(rows) if row.get("bans")},
    )


def edited(logits: Floats, row: dict[str, Any]) -> Floats:
    """A row's logits behind edits and bans, float32 [vocab]."""
    x = logits.copy()
    for token, (scale, add) in row.get("edits", {}).items():
        scale, add = np.float32(scale), np.float32(add)
        x[token] = (x[token] / scale if x[token] > 0 else x[token] * scale) + add
    x[list(row.get("bans", ()))] = -np.inf
    return x


def distribution(logits: Floats, row: dict[str, Any], slack: float = 0.0) -> Doubles:
    """Probabilities by the book, in float64. A `slack` makes the figures of top-p and min-p by that share looser."""
    x = edited(logits, row).astype(np.float64)
    x /= float(np.float32(row.get("temperature", 1.0)))
    p = np.exp(x - x.max())
    order = np.lexsort((np.arange(len(p)), -x))
    kept = order[: row.get("top_k", 0) or len(order)]
    top_p = float(np.float32(row.get("top_p", 1.0)))
    if top_p < 1:
        held = np.cumsum(p[kept])
        kept = kept[: int(np.searchsorted(held, top_p * held[-1] * (1 + slack))) + 1]
    kept = kept[p[kept] >= min(1.0, float(np.float32(row.get("min_p", 0.0))) * (1 - slack))]
    out = np.zeros_like(p)
    out[kept] = p[kept]
    return out / out.sum()


def may_be_drawn(logits: Floats, row: dict[str, Any], token: int, slack: float = 2e-5) -> bool:
    """Whether `token` wins the row's race, or would if weights were up to a share of `slack` different."""
    if float(np.float32(row.get("temperature", 1.0))) < float(np.float32(1e-5)):
        return token == int(edited(logits, row).argmax())
    loose, tight = distribution(logits, row, slack), distribution(logits, row, -slack)
    times = arrivals(row.get("seed", 0), row.get("position", 0), np.arange(len(logits))).astype(np.float64)
    with np.errstate(divide="ignore"):
        if loose[token] <= 0:
            return False
        weights = loose / loose.max()
        return bool(times[token] / weights[token] <= (times / weights)[tight > 0].min() * (1 + slack))
