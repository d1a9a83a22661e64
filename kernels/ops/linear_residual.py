"""A linear layer whose result joins the residual stream."""

from __future__ import annotations

import torch

from ..dispatch import op
from ..linear import Linear, apply_linear


@op
def linear_residual(x: torch.Tensor, linear: Linear, residual: torch.Tensor) -> torch.Tensor:
    """residual [T, out] + linear(x [T, in]) → [T, out], x's dtype. The residual is left as it was."""
    return apply_linear(x, linear).add_(residual)
