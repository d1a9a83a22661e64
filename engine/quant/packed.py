"""One matrix of compressed-tensors' `pack-quantized` layout, 4 bits (its `compressors/pack_quantized`).

- `weight_packed`: int32 [n, k / 8]. A word holds eight neighbouring inputs in rising bits, each plus 8.
- `weight_scale`: [n, k / group], or [n, 1] for one a row.
- `weight_zero_point`, unless symmetric: int32 [n / 8, k / group], eight neighbouring outputs in rising bits, each
  plus 8.
- `weight_shape`: int [2], n and k.

weight = scale * (value - zero), both of -8..7.
"""

from __future__ import annotations

import torch

from ..errors import ModelError
from .operands import Operand
from .parts import Parts, four_bit, groups_of, words
from .scheme import PER_WORD, Scheme


def read(parts: Parts, scheme: Scheme, n: int, k: int) -> Operand:
    """The matrix [n, k] of these parts. Raises `ModelError` for parts that do not make it."""
    parts.refuse("weight_g_idx")
    shape = parts.take("weight_shape", (2,), torch.int64, torch.int32).tolist()
    if shape != [n, k]:
        raise ModelError(f"{parts.module}weight_shape is {shape}, not {[n, k]}")
    groups = groups_of(parts.module, k, scheme.group)
    codes = words(parts.take("weight_packed", (n, k // PER_WORD), torch.int32))
    scales = parts.scales("weight_scale", (n, groups))
    if "weight_zero_point" not in parts.tensors:
        return four_bit(codes, scales, torch.full((), 8.0))
    rows = -(-n // PER_WORD)
    zeros = words(parts.take("weight_zero_point", (rows, groups), torch.int32), dim=0)[:n]
    return four_bit(codes, scales, zeros.float())
