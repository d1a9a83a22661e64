"""Times native attention at the shape of SmolLM2-135M: decoding beside the time to read its keys and values once.

The ratio of the two is what to look at: it holds where the memory is slow as well. Caches of many layers are used in
turn, so that they come from memory, and their blocks lie in random order. One thread, its processor time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from .memory import huge_bytes
from .native import library
from .native_attention import Batch, Run, Shape, attend_into, cache_bytes, scratch
from .native_linear import read

HEADS, KV_HEADS, DIM, BLOCK = 9, 3, 64, 16
CACHES = 150_000_000
"""Bytes of all layers together: more than a core's share of any cache."""
DECODE = tuple((sequences, context) for context in (256, 2000, 8000) for sequences in (1, 8, 32))
CHUNK = 512
"""Rows of a prefill."""
BEHIND = (0, 1000, 8000)
"""Tokens of its sequence that are in the cache already."""


def times(sequences: int, rows: int, context: int, *, int8: bool, rounds: int) -> tuple[float, float]:
    """Microseconds of one layer's attention, and of one read of its cache: the best of `rounds`.

    Each sequence has `rows` new rows and `context` tokens, these included.
    """
    width = -(-context // BLOCK)
    shape = Shape(
        heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, blocks=sequences * width, block_size=BLOCK, int8=int8,
        scale=DIM**-0.5,
    )  # fmt: skip
    size = cache_bytes(shape)
    layers = -(-CACHES // size)
    memory = huge_bytes(layers * size).fill_(1)
    tables = np.random.default_rng(0).permutation(shape.blocks).astype(np.int32).reshape(sequences, width)
    batch = Batch(
        np.arange(sequences + 1, dtype=np.int32) * np.int32(rows),
        np.full(sequences, context, np.int32),
        np.arange(sequences, dtype=np.int32),
        tables,
    )
    queries = np.full((batch.tokens, HEADS, shape.padded_dim), 0x3F80, np.uint16)  # ones
    run = Run(level=library().tg_best_level())
    out, room = np.empty((batch.tokens, HEADS * DIM), np.float32), scratch(shape, run.ranks)
    best = floor = float("inf")
    for _ in range(rounds):
        floor = min(floor, read(memory) / layers / 1e3)
        spent = [
            attend_into(out, shape, batch, run, queries, cache.numpy(), room) for cache in torch.split(memory, size)
        ]
        best = min(best, sum(spent) / layers / 1e3)
    return best, floor


def lines(rounds: int) -> Iterator[str]:
    """A table: one layer's decoding of several sequences, and a prefill behind several contexts."""
    level = library().tg_best_level()
    yield f"{'attention':28}{'us':>10}{'floor':>10}{'ratio':>10}{'TFLOP/s':>10}   level {level}, 1 thread"
    for name, int8 in (("bf16", False), ("int8", True)):
        for sequences, context in DECODE:
            best, floor = times(sequences, 1, context, int8=int8, rounds=rounds)
            title = f"{name}, decode {sequences} @ {context}"
            yield f"{title:28}{best:10.0f}{floor:10.0f}{best / floor:10.2f}"
        for behind in BEHIND:
            best, _ = times(1, CHUNK, behind + CHUNK, int8=int8, rounds=rounds)
            pairs = sum(range(behind + 1, behind + CHUNK + 1)) * HEADS
            title = f"{name}, prefill {CHUNK} @ {behind}"
            yield f"{title:28}{best:10.0f}{'':20}{4 * pairs * DIM / best / 1e6:10.2f}"
