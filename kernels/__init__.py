"""The tensor operations, each with a PyTorch reference."""

from .abi import KvFormat, TgStep
from .dispatch import Choice, Unavailable
from .linear import Experts, Linear, pack_experts, pack_linear
from .memory import huge_bytes
from .native_decoder import (
    NativeDecoder,
    PackedDense,
    PackedExperts,
    PackedLayer,
    PackedLinear,
    PackedModel,
    Rotation,
    StepRefused,
    ThreadPool,
    kernel_levels,
    kv_bytes,
)
from .ops.embedding import embedding
from .ops.gated_mlp import gated_mlp
from .ops.linear_residual import linear_residual
from .ops.lm_head import lm_head
from .ops.moe import moe
from .ops.norm_linear import norm_linear
from .ops.paged_attention import paged_attention
from .ops.plan_attention import AttentionPlan, plan_attention
from .ops.rope_kv import rope_angles, rope_kv
from .ops.sample import NUMERIC, SampleRows, log_probabilities, sample
from .packing import Format, PackedWeight, pack, pack_codes, pack_int8, unpack
from .packing import Shape as PackedShape
from .report import BackendReport, report

__all__ = [
    "NUMERIC",
    "AttentionPlan",
    "BackendReport",
    "Choice",
    "Experts",
    "Format",
    "KvFormat",
    "Linear",
    "NativeDecoder",
    "PackedDense",
    "PackedExperts",
    "PackedLayer",
    "PackedLinear",
    "PackedModel",
    "PackedShape",
    "PackedWeight",
    "Rotation",
    "SampleRows",
    "StepRefused",
    "TgStep",
    "ThreadPool",
    "Unavailable",
    "backend_report",
    "embedding",
    "gated_mlp",
    "huge_bytes",
    "kernel_levels",
    "kv_bytes",
    "linear_residual",
    "lm_head",
    "log_probabilities",
    "moe",
    "norm_linear",
    "pack",
    "pack_codes",
    "pack_experts",
    "pack_int8",
    "pack_linear",
    "paged_attention",
    "plan_attention",
    "rope_angles",
    "rope_kv",
    "sample",
    "unpack",
]

_OPS = (
    embedding,
    gated_mlp,
    linear_residual,
    lm_head,
    moe,
    norm_linear,
    paged_attention,
    plan_attention,
    rope_kv,
    sample,
)


def backend_report(device: str = "cpu") -> BackendReport:
    """Which implementation of each op serves `device` (`cpu` or `cuda`), and what the processor can do."""
    return report(_OPS, device)
