"""The 4-bit blocks of a GGUF, kept without loss beside the bf16 weights in `quant.safetensors`.

For every 2-D weight stored as Q4_1 or Q4_0, under its Hugging Face name without `.weight` (rows = outputs, K =
inputs, one block = 32 neighbouring inputs of a row):

- `<name>.codes`: uint8 [rows, K / 2]. Byte j (0..15) of block b holds input 32 b + j in its low nibble and input
  32 b + 16 + j in its high one.
- `<name>.scale`, `<name>.min`: float16 [rows, K / 32].

weight = scale * code + min, in float32, is bit for bit what `gguf.quants.dequantize` gives. Q4_0 (weight =
scale * (code - 8)) is stored with min = -8 * scale, which float16 holds exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from .gguf_file import GgufTensor
from .safetensors_file import TensorSlot

BLOCK = 32
"""Weights a block."""

_BYTES = {GGMLQuantizationType.Q4_1: 20, GGMLQuantizationType.Q4_0: 18}
"""Bytes a block: a float16 scale, in Q4_1 a float16 min, and 16 bytes of nibbles."""


@dataclass(frozen=True, slots=True)
class FourBit:
    """One weight as 4-bit codes; shapes as the module says."""

    codes: np.ndarray[Any, np.dtype[np.uint8]]
    scale: np.ndarray[Any, np.dtype[np.float16]]
    min: np.ndarray[Any, np.dtype[np.float16]]


def is_four_bit(kind: GGMLQuantizationType, shape: tuple[int, ...]) -> bool:
    """Whether `split` can keep a tensor of this type and shape exactly."""
    return kind in _BYTES and len(shape) == 2


def slots(name: str, rows: int, columns: int) -> dict[str, TensorSlot]:
    """What `quant.safetensors` holds for the weight called `name` (without `.weight`)."""
    return {
        f"{name}.codes": TensorSlot("U8", (rows, columns // 2)),
        f"{name}.scale": TensorSlot("F16", (rows, columns // BLOCK)),
        f"{name}.min": TensorSlot("F16", (rows, columns // BLOCK)),
    }


def split(tensor: GgufTensor) -> FourBit:
    """Take the interleaved blocks apart."""
    rows, columns = tensor.shape
    blocks = np.ascontiguousarray(tensor.blocks).reshape(rows, columns // BLOCK, _BYTES[tensor.type])
    scale = blocks[..., :2].copy().view(np.float16)[..., 0]
    if tensor.type == GGMLQuantizationType.Q4_1:
        low = blocks[..., 2:4].copy().view(np.float16)[..., 0]
        codes = blocks[..., 4:]
    else:
        low = scale * np.float16(-8)
        codes = blocks[..., 2:]
    return FourBit(np.ascontiguousarray(codes).reshape(rows, columns // 2), scale, low)
