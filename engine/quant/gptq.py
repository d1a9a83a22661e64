"""One matrix of AutoGPTQ's layout (GPTQ, arXiv 2210.17323; `qlinear` modules of AutoGPTQ and GPTQModel).

- `qweight`: int32 [k / 8, n]. A word holds eight neighbouring inputs in rising bits.
- `qzeros`: int32 [k / group, n / 8], eight neighbouring outputs in rising bits; the layout's first version keeps
  every zero point less 1.
- `scales`: float16 [k / group, n].
- `g_idx`: int32 [k], the group of each input. Where weights were quantised in the order of their activations
  (`desc_act`), groups are no neighbours. Such a matrix becomes plain numbers: exact, but no codes any more.

weight = scale * (code - zero).
"""

from __future__ import annotations

import torch

from ..errors import ModelError
from .operands import Dense, Operand
from .parts import Parts, four_bit, groups_of, words
from .scheme import PER_WORD, Scheme


def read(parts: Parts, scheme: Scheme, n: int, k: int) -> Operand:
    """The matrix [n, k] of these parts. Raises `ModelError` for parts that do not make it."""
    groups = groups_of(parts.module, k, scheme.group)
    codes = words(parts.take("qweight", (k // PER_WORD, n), torch.int32), dim=0).T.contiguous()
    stored = words(parts.take("qzeros", (groups, n // PER_WORD), torch.int32)).T.contiguous()
    zeros = stored.float() + scheme.zero_offset
    scales = parts.scales("scales", (groups, n)).T.contiguous()
    order = _order(parts, groups, k)
    if order is None:
        return four_bit(codes, scales, zeros)
    return Dense((codes.float() - zeros[:, order]) * scales[:, order])


def _order(parts: Parts, groups: int, k: int) -> torch.Tensor | None:
    """The group of each input, None where they are neighbours."""
    if "g_idx" not in parts.tensors:
        return None
    order = parts.take("g_idx", (k,), torch.int32, torch.int64).long()
    if bool(((order < 0) | (order >= groups)).any()):
        raise ModelError(f"{parts.module}g_idx names groups that are not there")
    return None if torch.equal(order, torch.arange(k) // (k // groups)) else order
