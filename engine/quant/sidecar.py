"""One matrix of `quant.safetensors`, the exact 4-bit blocks of a converted GGUF (engine/convert/quant_sidecar.py)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .operands import Int4
from .parts import Parts

BLOCK = 32
PARTS = ("codes", "scale", "min")


def read(module: str, tensors: Mapping[str, torch.Tensor], n: int, k: int) -> Int4:
    """The matrix [n, k] of the parts `codes`, `scale` and `min`. Raises `ModelError` for parts that do not make it."""
    parts = Parts(module, tensors)
    pairs = parts.take("codes", (n, k // 2), torch.uint8).view(n, k // BLOCK, BLOCK // 2)
    codes = torch.cat((pairs & 15, pairs >> 4), dim=-1).view(n, k)
    scale, minimum = (parts.take(name, (n, k // BLOCK), torch.float16) for name in ("scale", "min"))
    return Int4(codes, scale, minimum)
