"""Whole native steps against what they must read: `python -P tests/bench/steps.py [--threads N] [--precision int8]`.

Milliseconds a decode step at several batch sizes and contexts, and the same threads' one read of the same weights,
taken in turn. On one thread it is CPU time, on several wall-clock time; on a shared machine only the ratios are worth
much.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from rich.console import Console
from rich.table import Table

from fakes.models import embedded_folder
from tiergate.engine import LaneConfig
from tiergate.engine.config import KvPrecision
from tiergate.engine.packing import NativePrecision
from tiergate.engine.runners.cpu import NativeRunner
from tiergate.engine.runners.cpu import open as open_runner
from tiergate.engine.step_buffers import make_buffers
from tiergate.kernels import PackedModel, ThreadPool
from tiergate.kernels.native import library

BLOCK = 16


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    precisions: Sequence[NativePrecision] = get_args(NativePrecision)
    kv: KvPrecision = "bf16"
    rows: Sequence[int] = (1, 2, 4, 8, 16, 32)
    contexts: Sequence[int] = (8, 256, 2000)
    rounds: int = 15


class Decoding:
    """Rows that decode at a context of random blocks."""

    def __init__(self, runner: NativeRunner, rows: int, context: int) -> None:
        width = -(-(context + 1) // BLOCK)
        tables = np.random.default_rng(0).permutation(rows * width).astype(np.int32).reshape(rows, width)
        self._rows = rows
        self._buffers = b = make_buffers(tables, max_tokens=rows, max_repeat=1)
        self._step = runner.bind(b)
        b.token_ids[:] = np.arange(rows)
        b.positions[:], b.seq_lens[:] = context, context + 1
        b.query_starts[:], b.table_rows[:], b.logit_rows[:] = np.arange(rows + 1), np.arange(rows), np.arange(rows)
        b.sampling["top_p"], b.sampling["logprobs"], b.sampling["forced"] = 1, -1, -1

    def __call__(self) -> None:
        self._step(tokens=self._rows, sequences=self._rows, rows=self._rows, repeat=1, wake=-1)


def bench(folder: Path, pool: ThreadPool, plan: Plan, console: Console) -> list[dict[str, Any]]:
    """Print a table and return its rows."""
    clock = time.thread_time if pool.threads == 1 else time.perf_counter
    blocks = max(plan.rows) * (max(plan.contexts) // BLOCK + 1)
    table = Table("precision", "rows", "context", "ms", "read of weights, ms", "ratio", "with the cache's read")
    table.title = f"decode steps on {pool.threads} thread(s): median of {plan.rounds}, {clock.__name__}"
    for column in table.columns[1:]:
        column.justify = "right"
    records: list[dict[str, Any]] = []
    for precision in plan.precisions:
        lane = LaneConfig(
            name="bench", model=str(folder), precision=precision, kv_precision=plan.kv, blocks=blocks,
            max_batch_tokens=max(plan.rows), max_sequences=max(plan.rows),
        )  # fmt: skip
        runner = open_runner(lane, pool)
        read, weights = reader(runner, pool)
        for context in plan.contexts:
            for rows in plan.rows:
                step, floor = in_turn((Decoding(runner, rows, context), read), plan.rounds, clock)
                cached = rows * context * runner.facts.kv_bytes_per_token
                record = {
                    "precision": precision, "kv": plan.kv, "threads": pool.threads, "rows": rows, "context": context,
                    "ms": step * 1e3, "floor_ms": floor * 1e3, "ratio": step / floor,
                    "ratio_with_kv": step / (floor * (weights + cached) / weights),
                }  # fmt: skip
                records.append(record)
                figures = (f"{record[name]:.2f}" for name in ("ms", "floor_ms", "ratio", "ratio_with_kv"))
                table.add_row(precision, str(rows), str(context), *figures)
    console.print(table)
    return records


def in_turn(calls: Sequence[Callable[[], object]], rounds: int, clock: Callable[[], float]) -> tuple[float, ...]:
    """Median seconds of each, called one after another, over and over."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds + 2):
        for call, taken in zip(calls, times, strict=True):
            began = clock()
            call()
            taken.append(clock() - began)
    return tuple(median(taken[2:]) for taken in times)


def reader(runner: NativeRunner, pool: ThreadPool) -> tuple[Callable[[], object], int]:
    """Reads once what every step reads: all but the embedding table; and how many bytes that is."""
    model: PackedModel = runner._decoder._kept[0]
    head = model.head.weight
    start = model.layers[0].qkv.weight.data.data_ptr()
    size = (head.data.data_ptr() + head.shape.bytes - start) // 64 * 64
    core = library()

    core.tg_probe_pool_read.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    core.tg_probe_pool_read.restype = ctypes.c_uint64

    def read() -> object:
        return core.tg_probe_pool_read(pool.handle, start, size // 8)

    return read, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", default="smollm2-135m", help="smollm2-135m or smollm2-135m-moe")
    parser.add_argument("--precision", action="append", choices=get_args(NativePrecision))
    parser.add_argument("--kv", choices=get_args(KvPrecision), default="bf16")
    parser.add_argument("--rounds", type=int, default=Plan.rounds)
    args = parser.parse_args()
    plan = Plan(precisions=args.precision or Plan.precisions, kv=args.kv, rounds=args.rounds)
    bench(embedded_folder(args.model), ThreadPool(args.threads), plan, Console(width=120))


if __name__ == "__main__":
    main()
