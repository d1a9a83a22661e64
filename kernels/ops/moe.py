"""A mixture of gated experts with its norm, router and residual."""

from __future__ import annotations

import torch

from ..cases import Call, Case, Draw, Tolerance
from ..dispatch import op
from ..linear import Experts, Linear, apply_linear, pack_experts, pack_linear
from .gated_mlp import gated_linear
from .norm_linear import rms_norm


@op
def moe(
    x: torch.Tensor,
    norm: torch.Tensor,
    router: Linear,
    weights: Experts,
    eps: float,
    *,
    active: int,
    renormalise: bool,
    experts: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [T, hidden] + sum of the chosen experts' outputs on n = rms_norm(x), weighted by the router, x's dtype.

    The router's softmax runs over all experts in float32; the `active` likeliest are chosen and, if `renormalise`,
    their weights scaled to sum to 1. `experts` int32 [T] lowers the number for single rows (at least 1, never above
    `active`): a row keeps its likeliest ones, and a (row, expert) pair beyond them is not computed at all.
    A row's result depends on no other row; the experts' outputs are summed in float32, likeliest first.

    The reference buckets rows by expert and reads the bucket sizes back to the host.
    """
    rows = x.shape[0]
    normed = rms_norm(x, norm, eps)
    share, chosen = route(apply_linear(normed, router), active, renormalise, experts)
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    sizes = flat.bincount(minlength=len(weights.down) + 1).tolist()
    outputs = x.new_zeros((rows * active, x.shape[1]))
    start = 0
    for gate_up, down, size in zip(weights.gate_up, weights.down, sizes[:-1], strict=True):
        if size:
            mine = order[start : start + size]
            outputs.index_copy_(0, mine, gated_linear(normed.index_select(0, mine // active), gate_up, down))
            start += size
    mixed = outputs.view(rows, active, x.shape[1]).float().mul_(share[:, :, None]).sum(1)
    return mixed.to(x.dtype).add_(x)


def route(
    logits: torch.Tensor, active: int, renormalise: bool, experts: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Router logits [T, E] → weights float32 [T, active], likeliest first, and expert ids int64 [T, active].

    Slots that `experts` int32 [T] rules out have weight 0 and id E.
    """
    share, chosen = logits.softmax(-1, dtype=torch.float32).topk(active, -1)
    if experts is not None:
        kept = torch.arange(active, device=logits.device) < experts.clamp(min=1)[:, None]
        share, chosen = share.where(kept, 0.0), chosen.where(kept, logits.shape[1])
    return (share / share.sum(-1, keepdim=True) if renormalise else share), chosen


CASES = (
    Case(name="none", rows=0),
    Case(name="one", rows=1, hidden=64, width=96, on=True),
    Case(name="one-of-one", rows=3, experts=1, active=1),
    Case(name="raw-weights", rows=21, experts=7, active=3, hidden=33, width=17),
    Case(name="limited", rows=40, experts=8, active=4, on=True, limited=True),
    Case(name="limited-raw", rows=17, experts=8, active=4, limited=True, strided=True),
    Case(name="all", rows=9, experts=5, active=5, on=True),
)
TOLERANCE = {torch.float32: Tolerance(1e-5, 1e-5), torch.bfloat16: Tolerance(0.02, 0.03)}


def inputs(case: Case, draw: Draw) -> Call:
    """`rows` of `hidden`, `active` of `experts` of `width`; `on` renormalises, `limited` lowers some rows' numbers."""
    x = draw.rows(case.rows, case.hidden, strided=case.strided)
    # Router logits well apart, so that rounding seldom turns a choice.
    router = pack_linear(draw.weight(case.experts, case.hidden) * 4)
    weights = pack_experts(
        draw.weight(case.experts * 2 * case.width, case.hidden).view(case.experts, 2 * case.width, case.hidden),
        draw.weight(case.experts * case.hidden, case.width).view(case.experts, case.hidden, case.width),
    )
    limits = draw.integers(1, case.active + 2, case.rows).int() if case.limited else None
    options = {"active": case.active, "renormalise": case.on, "experts": limits}
    return (x, draw.norm(case.hidden), router, weights, 1e-5), options
