"""The check of a model's precisions: what it finds, and which of them to take. Torch-free until one is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .convert.progress import Progress, Silent

PRECISIONS: tuple[Literal["bf16", "int8", "int4"], ...] = ("bf16", "int8", "int4")
TOLERATED = 0.01
"""How much worse than bf16 the precision that `auto` takes may predict a text: relative, in perplexity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionCheck:
    """One precision of one model, on this machine."""

    precision: str
    """`bf16`, `int8` or `int4`."""
    perplexity: float
    weight_error: float
    """Of the packed matrices against the checkpoint's: root of the summed squares, relative."""
    exact_share: float
    """Of all weights in matrices, the share in such that were packed without any error."""
    bytes: int
    """Packed."""
    step_seconds: float
    """The fastest step of one token."""


def check_model(
    folder: Path, token_ids: Sequence[int], *, threads: int = 0, progress: Progress | None = None
) -> tuple[PrecisionCheck, ...]:
    """What each precision of the native core makes of the model in `folder`, on a text of these tokens.

    `threads` compute, 0: as many as there are cores. Loads torch. Raises `ModelError` for a model that cannot be
    loaded, and where there is no native core.
    """
    from .check import check

    return check(folder, token_ids, PRECISIONS, threads, progress or Silent())


def choose_precision(checks: Sequence[PrecisionCheck]) -> str:
    """The fastest precision that predicts nearly as well as bf16, which is among `checks`."""
    best = next(one.perplexity for one in checks if one.precision == "bf16")
    good = [one for one in checks if one.precision == "bf16" or one.perplexity <= best * (1 + TOLERATED)]
    return min(good, key=lambda one: one.step_seconds).precision
