"""What each precision makes of a model: how far off its weights are, how well it predicts a text, how fast it is."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tiergate.kernels import PackedWeight, ThreadPool, Unavailable, unpack

from .batch import Runner
from .checked import PrecisionCheck
from .config import LaneConfig
from .convert.progress import Progress
from .errors import ModelError
from .loader import read_spec
from .packed_cache import served_operands
from .packing import NativePrecision, pack_operands
from .perplexity import CHUNK, decode_batch, text_loss
from .quant.operands import Int4, Operand
from .runners import cpu

WINDOW = 1024
"""Tokens from which the next are predicted, at most."""
STEPS = 24
"""Decode steps that are timed, the fastest of which counts."""


def check(
    folder: Path, ids: Sequence[int], precisions: Sequence[NativePrecision], threads: int, progress: Progress
) -> tuple[PrecisionCheck, ...]:
    """See `tiergate.engine.check_model`."""
    try:
        pool = ThreadPool(threads or len(os.sched_getaffinity(0)))
    except Unavailable as why:
        raise ModelError(f"precisions are those of the native core, and there is none here: {why}") from why
    with torch.inference_mode():
        return tuple(_check(folder, ids, one, pool, progress) for one in precisions)


def _check(
    folder: Path, ids: Sequence[int], precision: NativePrecision, pool: ThreadPool, progress: Progress
) -> PrecisionCheck:
    spec = read_spec(folder)
    progress.begin(f"packing as {precision}", None)
    errors = _Errors()
    operands = served_operands(folder, spec, precision)
    layout, _ = pack_operands(spec, operands, precision, errors)
    window = min(WINDOW, spec.context)
    config = LaneConfig(
        name="check",
        model=str(folder),
        precision=precision,
        context=window,
        blocks=-(-window // 16) + 1,
        max_sequences=CHUNK,
        max_batch_tokens=CHUNK,
    )
    runner = cpu.open(config, pool)
    progress.begin(f"reading a text in {precision}", None)
    loss = text_loss(runner, ids, window)
    return PrecisionCheck(
        precision=precision,
        perplexity=loss.perplexity,
        weight_error=errors.relative,
        exact_share=errors.exact_share,
        bytes=layout.bytes,
        step_seconds=_step_seconds(runner),
    )


@dataclass(slots=True)
class _Errors:
    """Sums over all matrices but routers, which are never rounded further than to bf16."""

    off: float = 0.0
    size: float = 0.0
    exact: int = 0
    all: int = 0

    def __call__(self, operand: Operand, packed: PackedWeight) -> None:
        was, now = operand.dense().float(), unpack(packed)
        off = float((now - was).double().square().sum())
        self.off += off
        self.size += float(was.double().square().sum())
        self.all += was.numel()
        exact = off == 0 and (not isinstance(operand, Int4) or operand.exact)
        self.exact += was.numel() if exact else 0

    @property
    def relative(self) -> float:
        return float((self.off / self.size) ** 0.5) if self.size else 0.0

    @property
    def exact_share(self) -> float:
        return self.exact / max(1, self.all)


def _step_seconds(runner: Runner) -> float:
    best = float("inf")
    for _ in range(STEPS):
        batch = decode_batch(runner)
        began = time.perf_counter()
        runner.forward(batch)
        best = min(best, time.perf_counter() - began)
    return best
