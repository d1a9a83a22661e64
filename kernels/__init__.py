"""The tensor operations, each with a PyTorch reference."""

from .dispatch import Choice
from .linear import Linear, pack_linear
from .ops.embedding import embedding
from .ops.gated_mlp import gated_mlp
from .ops.linear_residual import linear_residual
from .ops.lm_head import lm_head
from .ops.norm_linear import norm_linear
from .ops.paged_attention import paged_attention
from .ops.plan_attention import AttentionPlan, plan_attention
from .ops.rope_kv import rope_angles, rope_kv
from .report import BackendReport, report

__all__ = [
    "AttentionPlan",
    "BackendReport",
    "Choice",
    "Linear",
    "backend_report",
    "embedding",
    "gated_mlp",
    "linear_residual",
    "lm_head",
    "norm_linear",
    "pack_linear",
    "paged_attention",
    "plan_attention",
    "rope_angles",
    "rope_kv",
]

_OPS = (embedding, gated_mlp, linear_residual, lm_head, norm_linear, paged_attention, plan_attention, rope_kv)


def backend_report(device: str = "cpu") -> BackendReport:
    """Which implementation of each op serves `device` (`cpu` or `cuda`), and what the processor can do."""
    return report(_OPS, device)
