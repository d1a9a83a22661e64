"""Times the native linear kernels over all weights of SmolLM2-135M, beside the time to read those weights once.

The ratio of the two is what to look at: it holds where the memory is slow as well. One thread, its processor time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .memory import huge_bytes
from .native import library
from .native_linear import Epilogue, prepare, read, repeat
from .packing import Format, PackedWeight, Shape, pack

LAYERS, HIDDEN, WIDTH, PACKED_HEADS, VOCAB = 30, 576, 1536, 960, 49152
ROWS = (1, 2, 4, 8, 16, 32, 128, 512)
FORMATS = (
    ("bf16", Format.BF16, 0),
    ("int8", Format.INT8, 0),
    ("int4 g32", Format.INT4, 32),
    ("int4 g64", Format.INT4, 64),
)


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's linear weights, one behind the other."""

    arena: torch.Tensor
    groups: tuple[tuple[Epilogue, tuple[PackedWeight, ...]], ...]
    """Weights of one shape, and what is done with their results."""

    @property
    def multiplications(self) -> int:
        """A row's."""
        return sum(len(each) * each[0].shape.n * each[0].shape.k for _, each in self.groups)


def make_weights(form: Format, group: int) -> Weights:
    """Random ones in the order of use; the head of an int4 model is int8."""
    layer = (
        (Epilogue.STORE, Shape(form, PACKED_HEADS, HIDDEN, group)),
        (Epilogue.ADD, Shape(form, HIDDEN, HIDDEN, group)),
        (Epilogue.SWIGLU, Shape(form, 2 * WIDTH, HIDDEN, group, paired=True)),
        (Epilogue.ADD, Shape(form, HIDDEN, WIDTH, group)),
    )
    head = Shape(Format.INT8 if form is Format.INT4 else form, VOCAB, HIDDEN)
    arena = huge_bytes(LAYERS * sum(shape.bytes for _, shape in layer) + head.bytes)
    made: dict[Shape, PackedWeight] = {}
    placed: dict[Shape, tuple[Epilogue, list[PackedWeight]]] = {}
    at = 0
    for epilogue, shape in (*layer * LAYERS, (Epilogue.STORE, head)):
        if shape not in made:
            made[shape] = pack(shape, torch.randn(shape.n, shape.k) * 0.05)
        room = arena[at : at + shape.bytes].copy_(made[shape].data)
        placed.setdefault(shape, (epilogue, []))[1].append(PackedWeight(shape, room))
        at += shape.bytes
    return Weights(arena, tuple((epilogue, tuple(each)) for epilogue, each in placed.values()))


def step(weights: Weights, rows: int, level: int) -> float:
    """Milliseconds of one pass of `rows` rows through all weights, each shape's in turn."""
    spent = 0
    for epilogue, each in weights.groups:
        shape = each[0].shape
        inputs = prepare(torch.randn(rows, shape.k), shape.format)
        spent += repeat(level, each, inputs, torch.zeros(rows, shape.n), epilogue=epilogue)
    return spent / 1e6


def lines(rounds: int) -> Iterator[str]:
    """A table: the best of `rounds` for each format and number of rows."""
    level = library().tg_best_level()
    yield f"{'linear kernels':24}{'ms':>10}{'floor':>10}{'ratio':>10}{'TOP/s':>10}   level {level}, 1 thread"
    for name, form, group in FORMATS:
        weights = make_weights(form, group)
        for rows in ROWS:
            pairs = [(step(weights, rows, level), read(weights.arena) / 1e6) for _ in range(rounds)]
            best, floor = (min(each) for each in zip(*pairs, strict=True))
            rate = 2 * weights.multiplications * rows / best / 1e9
            yield f"{f'{name}, {rows} rows':24}{best:10.2f}{floor:10.2f}{best / floor:10.2f}{rate:10.2f}"
