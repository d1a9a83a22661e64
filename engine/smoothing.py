"""Evens out the inputs of int8 matrices: what a norm's weights make large is made small, and what reads it large.

A row of activations and a row of weights are each rounded in steps of their own largest value. Dividing channel j of
the norm's weights by a factor and multiplying column j of what reads it by the same leaves the product as it is and
moves precision from one to the other: SmoothQuant (arXiv 2211.10438). There the channels' sizes are measured on a text;
here they are the norm's own weights, which is what channels that were normed are multiplied by. Factors are powers of
two, so that no float is rounded anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch

from .models.spec import ModelSpec, MoeSpec
from .quant.operands import Dense, Operand

STRENGTH = 0.35
"""0 leaves all to the activations' rounding, 0.5 balances the two. Measured best on SmolLM2-135M, with rotation."""
LIMIT = 8
"""Largest power of two."""


def smooth(spec: ModelSpec, operands: dict[str, Operand], wanted: Collection[str]) -> None:
    """Even out, in place, the norms all of whose readers are among `wanted`, routers aside. The head is an operand."""
    for norm, readers in _norms(spec):
        matrices = [operands[name] for name in readers]
        known = all(name in wanted or name.endswith("router") for name in readers)
        if not known or not all(isinstance(matrix, Dense) for matrix in matrices):
            continue
        weights = operands[norm].dense().float()
        factors = factors_of(
            weights, [one.dense() for one, name in zip(matrices, readers, strict=True) if name in wanted]
        )
        operands[norm] = Dense(weights / factors)
        for name, matrix in zip(readers, matrices, strict=True):
            operands[name] = Dense(matrix.dense() * factors.to(matrix.dense().dtype))


def factors_of(norm: torch.Tensor, matrices: Collection[torch.Tensor]) -> torch.Tensor:
    """float32 [k], a power of two for each input of matrices [..., k] that read what `norm` [k] scales."""
    squares = sum((one.float().flatten(0, -2).square().mean(0) for one in matrices), torch.zeros(len(norm)))
    ratio = (norm.abs() / (squares / len(matrices)).sqrt()).log2()
    ratio = torch.where(ratio.isfinite(), ratio, torch.nan)
    centred = torch.nan_to_num(ratio - ratio.nanmean(), nan=0.0)
    return torch.exp2((centred * STRENGTH).round().clamp(-LIMIT, LIMIT))


def _norms(spec: ModelSpec) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every norm, and the matrices that read what it gives."""
    for index, layer in enumerate(spec.layers):
        at = f"layers.{index}."
        yield at + "attention_norm", (at + "qkv",)
        sparse = isinstance(layer.mlp, MoeSpec)
        yield at + "mlp_norm", (at + "experts_gate_up", at + "router") if sparse else (at + "gate_up",)
    yield "norm", ("head",)
