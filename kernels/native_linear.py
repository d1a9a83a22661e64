"""The native linear kernels on tensors, at any level: for tests and benchmarks. The engine does not use this."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import torch

from .native import library
from .packing import Format, PackedWeight


class Epilogue(IntEnum):
    """What becomes of the result; kernels.h's numbers."""

    STORE = 0
    ADD = 1
    SWIGLU = 2


@dataclass(frozen=True, slots=True)
class Rows:
    """Inputs as a linear kernel takes them, see Activations in kernels.h."""

    data: torch.Tensor
    """bf16 or int8 [m, k padded to a multiple of 64]."""
    scale: torch.Tensor
    """float32 [m], int8 only."""
    sums: torch.Tensor
    """int32 [m, padded / 32], int8 only."""
    k: int

    def values(self) -> torch.Tensor:
        """The inputs that these stand for: float32 [m, k]."""
        values = self.data[:, : self.k].float()
        return values if self.data.dtype is torch.bfloat16 else values * self.scale[:, None]

    def select(self, rows: torch.Tensor) -> Rows:
        """Those rows, in that order."""
        return Rows(self.data[rows], self.scale[rows], self.sums[rows], self.k)


def prepare(x: torch.Tensor, weight: Format) -> Rows:
    """Round x [m, k] to what a weight of this format is multiplied with: bf16, or int8 with a scale a row."""
    m, k = x.shape
    padded = torch.zeros(m, -(-k // 64) * 64)
    padded[:, :k] = x
    if weight is Format.BF16:
        return Rows(padded.bfloat16(), torch.ones(m), torch.empty((m, 0), dtype=torch.int32), k)
    scale = padded.abs().amax(1) / 127
    values = (padded / scale.where(scale > 0, 1.0)[:, None]).round().to(torch.int8)
    return Rows(values, scale, values.view(m, padded.shape[1] // 32, 32).sum(-1, dtype=torch.int32), k)


def linear(
    level: int,
    weight: PackedWeight,
    rows: Rows,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = Epilogue.STORE,
    out: torch.Tensor | None = None,
    ranks: int = 1,
    threads: bool = False,
) -> torch.Tensor:
    """Run it at abi.h's `level`, shared out among `ranks`, one after the other or on threads; float32 [m, n or n / 2].

    `out` is written in place where given (its rows may lie apart), as ADD needs it. Raises ValueError where this
    machine lacks the level.
    """
    width = weight.shape.n // 2 if epilogue is Epilogue.SWIGLU else weight.shape.n
    made = torch.full((rows.data.shape[0], width), torch.nan) if out is None else out
    if repeat(level, [weight], rows, made, bias=bias, epilogue=epilogue, ranks=ranks, threads=threads) < 0:
        raise ValueError(f"level {level} is missing")
    return made


def repeat(
    level: int,
    weights: Sequence[PackedWeight],
    rows: Rows,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = Epilogue.STORE,
    ranks: int = 1,
    threads: bool = False,
) -> int:
    """Run `weights` of one shape in turn into `out`: nanoseconds of processor time, -1 where the level is missing."""
    shape = weights[0].shape
    pointers = (ctypes.c_void_p * len(weights))(*(weight.data.data_ptr() for weight in weights))
    spent: int = _functions().tg_probe_linear(
        level, shape.format, shape.group, shape.n, shape.k, shape.paired,
        pointers, len(weights), None if bias is None else bias.data_ptr(),
        rows.data.shape[0], rows.data.shape[1], rows.data.data_ptr(), rows.scale.data_ptr(), rows.sums.data_ptr(),
        out.data_ptr(), out.stride(0), epilogue, ranks, threads,
    )  # fmt: skip
    return spent


def read(data: torch.Tensor) -> int:
    """Read all of a tensor's memory once, in order: the floor. Nanoseconds of processor time."""
    check = ctypes.c_uint64()
    spent: int = _functions().tg_probe_read(data.data_ptr(), data.nbytes, ctypes.byref(check))
    return spent


@cache
def _functions() -> ctypes.CDLL:
    found, number, pointer = library(), ctypes.c_int32, ctypes.c_void_p
    found.tg_probe_linear.restype = found.tg_probe_read.restype = ctypes.c_int64
    found.tg_probe_linear.argtypes = [
        *[number] * 6, pointer, number, pointer, number, number, *[pointer] * 4, ctypes.c_int64, *[number] * 3
    ]  # fmt: skip
    found.tg_probe_read.argtypes = [pointer, ctypes.c_int64, pointer]
    return found
