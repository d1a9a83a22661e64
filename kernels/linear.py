"""The weight of a linear layer, held the way its device likes it best.

On a CPU, oneDNN repacks a plain bf16 weight on every call, which costs a third of a decode step; packing it once at
load avoids that. Everywhere else the weight stays a plain matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x Wᵀ + b. Made by `pack_linear`; ops read it, nobody changes it."""

    weight: torch.Tensor
    """[out, in], or the same in oneDNN's blocked layout when `packed`."""
    bias: torch.Tensor | None
    """[out], same dtype as the weight."""
    packed: bool

    @property
    def features(self) -> int:
        """Outputs of the layer."""
        return self.weight.shape[0]


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Take `weight` [out, in] and `bias` [out] into the layout that `apply_linear` is fastest with."""
    if weight.device.type == "cpu" and weight.dtype is torch.bfloat16 and _onednn_packs_bf16():
        return Linear(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()), bias, packed=True)
    return Linear(weight.contiguous(), bias, packed=False)


@dataclass(frozen=True, slots=True)
class Experts:
    """The matrices of a layer's routed experts. Made by `pack_experts`."""

    gate_up: tuple[Linear, ...]
    """One an expert: [2 * width, hidden], gate above up."""
    down: tuple[Linear, ...]
    """One an expert: [hidden, width]."""


def pack_experts(gate_up: torch.Tensor, down: torch.Tensor) -> Experts:
    """Take `gate_up` [E, 2 * width, hidden] and `down` [E, hidden, width] apart and pack each expert's."""
    return Experts(tuple(map(pack_linear, gate_up)), tuple(map(pack_linear, down)))


def apply_linear(x: torch.Tensor, linear: Linear) -> torch.Tensor:
    """x [T, in] → [T, out] in x's dtype, accumulated in float32 or better."""
    if linear.packed and x.shape[0]:
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, linear.weight, linear.bias, "none", [], "")
        return y
    if linear.packed:
        return x.new_empty((0, linear.features))
    return F.linear(x, linear.weight, linear.bias)


def _onednn_packs_bf16() -> bool:
    ops = torch.ops.mkldnn
    return (
        torch._C._has_mkldnn
        and hasattr(ops, "_reorder_linear_weight")
        and hasattr(ops, "_linear_pointwise")
        and bool(ops._is_mkldnn_bf16_supported())
    )
