"""The gated feed-forward block with its norm and residual."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..dispatch import op
from ..linear import Linear, apply_linear
from .norm_linear import rms_norm


@op
def gated_mlp(x: torch.Tensor, norm: torch.Tensor, gate_up: Linear, down: Linear, eps: float) -> torch.Tensor:
    """x [T, hidden] + down(silu(gate(n)) * up(n)) with n = rms_norm(x) (SwiGLU, arXiv 2002.05202), x's dtype.

    gate_up holds the gate's rows above the up projection's: [2 * width, hidden]; down is [hidden, width].
    """
    return gated_linear(rms_norm(x, norm, eps), gate_up, down).add_(x)


def gated_linear(x: torch.Tensor, gate_up: Linear, down: Linear) -> torch.Tensor:
    """down(silu(gate(x)) * up(x)), [T, hidden] → [T, hidden]."""
    gate, up = apply_linear(x, gate_up).chunk(2, -1)
    return apply_linear(F.silu(gate).mul_(up), down)
