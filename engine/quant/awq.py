"""One matrix of AutoAWQ's GEMM layout (AWQ, arXiv 2306.00978; `awq/modules/linear/gemm.py` of AutoAWQ).

- `qweight`: int32 [k, n / 8]. A word holds eight neighbouring outputs, the (0, 2, 4, 6, 1, 3, 5, 7)-th of them in
  rising bits.
- `qzeros`: int32 [k / group, n / 8], likewise.
- `scales`: float16 [k / group, n].

weight = scale * (code - zero).
"""

from __future__ import annotations

import torch

from .operands import Operand
from .parts import Parts, four_bit, groups_of, words
from .scheme import PER_WORD, Scheme

_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def read(parts: Parts, scheme: Scheme, n: int, k: int) -> Operand:
    """The matrix [n, k] of these parts. Raises `ModelError` for parts that do not make it."""
    groups = groups_of(parts.module, k, scheme.group)
    codes = words(parts.take("qweight", (k, n // PER_WORD), torch.int32), _ORDER)
    zeros = words(parts.take("qzeros", (groups, n // PER_WORD), torch.int32), _ORDER)
    scales = parts.scales("scales", (groups, n))
    return four_bit(codes.T.contiguous(), scales.T.contiguous(), zeros.T.contiguous())
