"""Weights in the native core's layout (cpu/packing.h): made once at load, read by its linear kernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import torch

from .native import library


class Format(IntEnum):
    """How a packed weight is kept; abi.h's numbers."""

    BF16 = 0
    INT8 = 1
    """Values of -127..127 times a float32 scale a row."""
    INT4 = 2
    """Codes of 0..15 times a float16 scale plus a float16 minimum, both per row and group of inputs."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a packed weight is of."""

    format: Format
    n: int
    """Outputs."""
    k: int
    """Inputs."""
    group: int = 0
    """INT4: inputs a group, 32 or 64; 0 for the other formats."""
    paired: bool = False
    """The first n / 2 outputs are a gate and the others its up."""
    rotated: bool = False
    """INT8, with k a multiple of 64: kept, and multiplied, in a basis in which outliers are spread; see `rotate`."""

    @property
    def bytes(self) -> int:
        """Size of the packed data. Raises ValueError where there is no such packing."""
        size: int = _functions().tg_packed_bytes(*self._arguments())
        if size < 0:
            raise ValueError(f"no packing of {self}")
        return size

    def _arguments(self) -> tuple[int, ...]:
        return self.format, self.group, self.n, self.k, self.paired


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight as the kernels read it."""

    shape: Shape
    data: torch.Tensor
    """uint8 [shape.bytes], from an address that is a multiple of 64."""


def pack(shape: Shape, weight: torch.Tensor, out: torch.Tensor | None = None) -> PackedWeight:
    """Round `weight` [n, k] to the shape's format, from float32.

    `out`, if given, is where to: uint8 [shape.bytes] from a multiple of 64 on. All functions here raise ValueError for
    shapes that do not fit together.
    """
    source = _matrix(weight, torch.float32, shape.n, shape.k)
    if shape.rotated:
        source = rotate(source)
    made = _room(shape, out)
    _functions().tg_pack(*shape._arguments(), source.data_ptr(), made.data_ptr())
    return PackedWeight(shape, made)


def pack_codes(
    shape: Shape, codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor, out: torch.Tensor | None = None
) -> PackedWeight:
    """Without loss: w = scale * code + minimum, codes uint8 [n, k] of 0..15, the others float16 [n, k / group]."""
    if shape.format is not Format.INT4 or shape.group == 0 or shape.k % shape.group:
        raise ValueError(f"codes do not fit {shape}")
    matrix = _matrix(codes, torch.uint8, shape.n, shape.k)
    scales, minima = (_matrix(each, torch.float16, shape.n, shape.k // shape.group) for each in (scale, minimum))
    made = _room(shape, out)
    _functions().tg_pack_codes(
        shape.group, shape.n, shape.k, shape.paired,
        matrix.data_ptr(), scales.data_ptr(), minima.data_ptr(), made.data_ptr(),
    )  # fmt: skip
    return PackedWeight(shape, made)


def pack_int8(shape: Shape, values: torch.Tensor, scale: torch.Tensor, out: torch.Tensor | None = None) -> PackedWeight:
    """Without loss: values int8 [n, k], scale float32 [n], w = scale * value."""
    if shape.format is not Format.INT8:
        raise ValueError(f"int8 values do not fit {shape}")
    matrix = _matrix(values, torch.int8, shape.n, shape.k)
    scales = _matrix(scale[:, None], torch.float32, shape.n, 1)
    made = _room(shape, out)
    _functions().tg_pack_int8(
        shape.n, shape.k, shape.paired, matrix.data_ptr(), scales.data_ptr(), made.data_ptr()
    )  # fmt: skip
    return PackedWeight(shape, made)


def unpack(packed: PackedWeight) -> torch.Tensor:
    """What the weight has become: float32 [n, k]."""
    out = torch.empty(packed.shape.n, packed.shape.k)
    _functions().tg_unpack(*packed.shape._arguments(), packed.data.data_ptr(), out.data_ptr())
    return rotate(out) if packed.shape.rotated else out


def rotate(rows: torch.Tensor) -> torch.Tensor:
    """float32 [m, k], every 64 neighbours of a row times the Hadamard matrix of that order over 8: its own inverse."""
    matrix = torch.ones(1, 1)
    for _ in range(6):
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return (rows.reshape(-1, 64) @ (matrix / 8)).view(rows.shape)


def _room(shape: Shape, out: torch.Tensor | None) -> torch.Tensor:
    size = shape.bytes
    room = torch.empty(size, dtype=torch.uint8) if out is None else out
    if room.dtype is not torch.uint8 or room.shape != (size,) or not room.is_contiguous() or room.data_ptr() % 64:
        raise ValueError(f"{shape} needs {size} bytes in a row from a multiple of 64, not {tuple(room.shape)}")
    return room


def _matrix(tensor: torch.Tensor, dtype: torch.dtype, rows: int, columns: int) -> torch.Tensor:
    if tensor.shape != (rows, columns):
        raise ValueError(f"expected [{rows}, {columns}], not {list(tensor.shape)}")
    return tensor.to("cpu", dtype).contiguous()


@cache
def _functions() -> ctypes.CDLL:
    found, number, pointer = library(), ctypes.c_int32, ctypes.c_void_p
    found.tg_packed_bytes.restype = ctypes.c_int64
    found.tg_packed_bytes.argtypes = [number] * 5
    found.tg_pack.argtypes = found.tg_unpack.argtypes = [number] * 5 + [pointer] * 2
    found.tg_pack_codes.argtypes = [number] * 4 + [pointer] * 4
    found.tg_pack_int8.argtypes = [number] * 3 + [pointer] * 3
    return found
