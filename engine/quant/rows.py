"""One matrix of compressed-tensors' `int-quantized` layout, 8 bits (its `compressors/int_quantized`).

- `weight`: int8 [n, k].
- `weight_scale`: [n, 1], or [1] for one scale of all.
- `weight_zero_point`: all zeros where it is there.
- `input_scale`, `input_zero_point`: fixed scales of activations. Passed over: the engine takes each row's own.

weight = scale * value.
"""

from __future__ import annotations

import torch

from ..errors import ModelError
from .operands import Dense, Int8, Operand
from .parts import Parts
from .scheme import Scheme


def read(parts: Parts, scheme: Scheme, n: int, k: int) -> Operand:
    """The matrix [n, k] of these parts. Raises `ModelError` for parts that do not make it."""
    values = parts.take("weight", (n, k), torch.int8)
    one = parts.tensors["weight_scale"].numel() == 1 and n != 1
    scale = parts.scales("weight_scale", tuple(parts.tensors["weight_scale"].shape) if one else (n, 1))
    zero = parts.tensors.get("weight_zero_point")
    if zero is not None and bool(zero.bool().any()):
        raise ModelError(f"{parts.module}weight_zero_point: zero points other than 0 are not supported")
    scales = scale.reshape(-1).expand(n).contiguous()
    if bool((values == -128).any()):  # the native formats are symmetric
        return Dense(values.float() * scales[:, None])
    return Int8(values, scales)
