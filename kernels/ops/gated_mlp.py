"""The gated feed-forward block with its norm and residual."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..cases import Call, Case, Draw, Tolerance
from ..dispatch import op
from ..linear import Linear, apply_linear, pack_linear
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


CASES = (
    Case(name="none", rows=0),
    Case(name="one", rows=1, hidden=576, width=1536),
    Case(name="odd", rows=7, hidden=33, width=17, on=True),
    Case(name="strided", rows=16, strided=True),
    Case(name="many", rows=130, hidden=64, width=100, on=True),
)
TOLERANCE = {torch.float32: Tolerance(1e-5, 1e-5), torch.bfloat16: Tolerance(0.02, 0.03)}


def inputs(case: Case, draw: Draw) -> Call:
    """`rows` of `hidden` through `width`; `on` adds biases."""
    x = draw.rows(case.rows, case.hidden, strided=case.strided)
    gate_up = pack_linear(draw.weight(2 * case.width, case.hidden), draw.normal(2 * case.width) if case.on else None)
    down = pack_linear(draw.weight(case.hidden, case.width), draw.normal(case.hidden) if case.on else None)
    return (x, draw.norm(case.hidden), gate_up, down, 1e-5), {}
