"""RMS norm and the linear layer behind it, as one operation."""

from __future__ import annotations

import torch

from ..cases import Call, Case, Draw, Tolerance
from ..dispatch import op
from ..linear import Linear, apply_linear, pack_linear


@op
def norm_linear(x: torch.Tensor, norm: torch.Tensor, linear: Linear, eps: float) -> torch.Tensor:
    """x [T, in], norm [in] → linear(rms_norm(x) * norm) [T, out], x's dtype."""
    return apply_linear(rms_norm(x, norm, eps), linear)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) * weight over the last axis (Zhang & Sennrich, arXiv 1910.07467).

    The normalised value is computed in float32, rounded to x's dtype and then scaled, as transformers does.
    """
    wide = x.float()
    scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    # Written straight into x's dtype: a third less time than a product and a conversion.
    return torch.mul(wide, scale, out=torch.empty_like(x)).mul_(weight)


CASES = (
    Case(name="none", rows=0),
    Case(name="one", rows=1, hidden=576, width=960),
    Case(name="odd", rows=7, hidden=33, width=17, on=True),
    Case(name="strided", rows=16, strided=True),
    Case(name="many", rows=130, hidden=64, width=100, on=True),
)
TOLERANCE = {torch.float32: Tolerance(1e-5, 1e-5), torch.bfloat16: Tolerance(0.02, 0.02)}


def inputs(case: Case, draw: Draw) -> Call:
    """`rows` of `hidden` to `width`; `on` adds a bias."""
    x = draw.rows(case.rows, case.hidden, strided=case.strided)
    bias = draw.normal(case.width) if case.on else None
    return (x, draw.norm(case.hidden), pack_linear(draw.weight(case.width, case.hidden), bias), 1e-5), {}
