"""Final norm, vocabulary projection and what sampling wants to know of each row."""

from __future__ import annotations

import torch

from ..cases import Call, Case, Draw, Tolerance
from ..dispatch import op
from ..linear import Linear, apply_linear, pack_linear
from .norm_linear import rms_norm


@op
def lm_head(
    x: torch.Tensor,
    norm: torch.Tensor,
    head: Linear,
    eps: float,
    out: torch.Tensor | None = None,
    statistics: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [R, hidden] → logits float32 [R, vocab] = head(rms_norm(x) * norm).

    Written into the first R rows of `out` float32 [>= R, vocab] when given: at 49k words a fresh result costs more in
    page faults than in arithmetic. `statistics` float32 [>= R, 4], when given, gets the `row_statistics` of each row.
    """
    scores = apply_linear(rms_norm(x, norm, eps), head)
    logits = scores.float() if out is None else out[: x.shape[0]].copy_(scores)
    if statistics is not None:
        statistics[: x.shape[0]] = row_statistics(logits)
    return logits


def row_statistics(logits: torch.Tensor) -> torch.Tensor:
    """logits float32 [R, vocab >= 2] → float32 [R, 4]: largest, second largest, log-sum-exp, and entropy in nats.

    Of the softmax at temperature 1. A row with a NaN has NaN as its log-sum-exp and entropy.
    """
    top = logits.topk(2, -1).values
    total = logits.logsumexp(-1, keepdim=True)
    log_p = logits - total
    # A -inf logit has probability 0 and adds nothing, where the plain product would be NaN.
    entropy = -(log_p.exp() * log_p).masked_fill(logits == -torch.inf, 0.0).sum(-1, keepdim=True)
    return torch.cat((top, total, entropy), 1)


CASES = (
    Case(name="none", rows=0),
    Case(name="one", rows=1, hidden=64, width=997),
    Case(name="into-a-buffer", rows=5, width=129, on=True),
    Case(name="strided", rows=9, strided=True, width=200, on=True),
)
TOLERANCE = {torch.float32: Tolerance(1e-5, 1e-5), torch.bfloat16: Tolerance(0.02, 0.03)}


def inputs(case: Case, draw: Draw) -> Call:
    """`rows` of `hidden` over a vocabulary of `width`; `on` gives buffers for logits and statistics."""
    x = draw.rows(case.rows, case.hidden, strided=case.strided)
    head = pack_linear(draw.weight(case.width, case.hidden))
    buffers = {}
    if case.on:
        rows = case.rows + 3
        buffers = {
            "out": torch.full((rows, case.width), torch.nan, device=draw.device),
            "statistics": torch.full((rows, 4), torch.nan, device=draw.device),
        }
    return (x, draw.norm(case.hidden), head, 1e-5), buffers
