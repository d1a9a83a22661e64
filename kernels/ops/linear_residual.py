"""A linear layer whose result joins the residual stream."""

from __future__ import annotations

import torch

from ..cases import Call, Case, Draw, Tolerance
from ..dispatch import op
from ..linear import Linear, apply_linear, pack_linear


@op
def linear_residual(x: torch.Tensor, linear: Linear, residual: torch.Tensor) -> torch.Tensor:
    """residual [T, out] + linear(x [T, in]) → [T, out], x's dtype. The residual is left as it was."""
    return apply_linear(x, linear).add_(residual)


CASES = (
    Case(name="none", rows=0),
    Case(name="one", rows=1, hidden=576, width=576),
    Case(name="odd", rows=7, hidden=33, width=17, on=True),
    Case(name="strided", rows=16, strided=True),
    Case(name="many", rows=130, hidden=64, width=100, on=True),
)
TOLERANCE = {torch.float32: Tolerance(1e-5, 1e-5), torch.bfloat16: Tolerance(0.02, 0.02)}


def inputs(case: Case, draw: Draw) -> Call:
    """`rows` of `hidden` to `width`; `on` adds a bias."""
    x = draw.rows(case.rows, case.hidden, strided=case.strided)
    bias = draw.normal(case.width) if case.on else None
    return (x, pack_linear(draw.weight(case.width, case.hidden), bias), draw.normal(case.rows, case.width)), {}
