"""RMS norm and the linear layer behind it, as one operation."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..dispatch import op
from ..linear import Linear, apply_linear


@op
def norm_linear(x: torch.Tensor, norm: torch.Tensor, linear: Linear, eps: float) -> torch.Tensor:
    """x [T, in], norm [in] → linear(rms_norm(x) * norm) [T, out], x's dtype."""
    return apply_linear(rms_norm(x, norm, eps), linear)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) * weight over the last axis (Zhang & Sennrich, arXiv 1910.07467).

    The normalised value is computed in float32, rounded to x's dtype and then scaled, as transformers does.
    """
    return F.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype).mul_(weight)
