"""A `ModelSpec` and its weights as a forward pass over a `ForwardBatch`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tiergate.kernels import (
    Experts,
    Linear,
    embedding,
    gated_mlp,
    linear_residual,
    lm_head,
    moe,
    norm_linear,
    pack_experts,
    pack_linear,
    paged_attention,
    plan_attention,
    rope_angles,
    rope_kv,
)

from .batch import ForwardBatch
from .kv_cache import KVCache
from .models.spec import LayerSpec, ModelSpec, MoeSpec
from .rope import frequencies


@dataclass(frozen=True, slots=True)
class _Dense:
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class _Sparse:
    router: Linear
    experts: Experts
    active: int
    renormalise: bool


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Linear
    scale: float
    window: int
    mlp_norm: torch.Tensor
    mlp: _Dense | _Sparse


class Decoder:
    """Takes `weights` (the dict is emptied, so that plain and packed copies never stand side by side)."""

    def __init__(self, spec: ModelSpec, weights: dict[str, torch.Tensor], context: int) -> None:
        self._spec = spec
        self._table = weights.pop("embed")
        self._norm = weights.pop("norm")
        self._head = pack_linear(self._table if spec.tied else weights.pop("head"))
        self._layers = tuple(_layer(one, weights, f"layers.{index}.") for index, one in enumerate(spec.layers))
        self._frequencies = frequencies(spec.rope, context).to(self._table.device)

    def forward(self, batch: ForwardBatch, cache: KVCache, out: torch.Tensor | None = None) -> torch.Tensor:
        """Write the batch's keys and values into `cache` and return logits float32 [R, vocab], in `out` if given."""
        eps = self._spec.norm_eps
        x = embedding(batch.token_ids, self._table)
        cos, sin = rope_angles(batch.positions, self._frequencies, self._spec.rope.attention_factor, x.dtype)
        plans = {
            window: plan_attention(
                batch.block_tables,
                batch.query_starts,
                batch.seq_lens,
                query_lens=batch.query_lens,
                context_lens=batch.context_lens,
                block_size=cache.layers[0].shape[1],
                window=window,
                dtype=x.dtype,
            )
            for window in {layer.window for layer in self._layers}
        }
        experts = batch.experts
        for layer, kv in zip(self._layers, cache.layers, strict=True):
            qkv = norm_linear(x, layer.attention_norm, layer.qkv, eps)
            q = rope_kv(qkv, cos, sin, kv, batch.slots, q_norm=layer.q_norm, k_norm=layer.k_norm, eps=eps)
            attended = paged_attention(q, kv, plans[layer.window], layer.scale)
            if layer is self._layers[-1]:
                # Behind the last cache write only the rows whose logits are wanted matter.
                x, attended = x.index_select(0, batch.logit_rows), attended.index_select(0, batch.logit_rows)
                experts = None if experts is None else experts.index_select(0, batch.logit_rows)
            x = linear_residual(attended, layer.out, x)
            x = _feed_forward(x, layer, eps, experts)
        return lm_head(x, self._norm, self._head, eps, out)


def _feed_forward(x: torch.Tensor, layer: _Layer, eps: float, experts: torch.Tensor | None) -> torch.Tensor:
    mlp = layer.mlp
    if isinstance(mlp, _Dense):
        return gated_mlp(x, layer.mlp_norm, mlp.gate_up, mlp.down, eps)
    return moe(
        x,
        layer.mlp_norm,
        mlp.router,
        mlp.experts,
        eps,
        active=mlp.active,
        renormalise=mlp.renormalise,
        experts=experts,
    )


def _layer(spec: LayerSpec, weights: dict[str, torch.Tensor], prefix: str) -> _Layer:
    def linear(name: str) -> Linear:
        return pack_linear(weights.pop(prefix + name), weights.pop(f"{prefix}{name}_bias", None))

    mlp: _Dense | _Sparse
    if isinstance(spec.mlp, MoeSpec):
        experts = pack_experts(weights.pop(prefix + "experts_gate_up"), weights.pop(prefix + "experts_down"))
        mlp = _Sparse(linear("router"), experts, spec.mlp.active, spec.mlp.renormalise)
    else:
        mlp = _Dense(linear("gate_up"), linear("down"))
    return _Layer(
        attention_norm=weights.pop(prefix + "attention_norm"),
        qkv=linear("qkv"),
        q_norm=weights.pop(prefix + "q_norm", None),
        k_norm=weights.pop(prefix + "k_norm", None),
        out=linear("out"),
        scale=spec.attention.scale,
        window=spec.attention.window,
        mlp_norm=weights.pop(prefix + "mlp_norm"),
        mlp=mlp,
    )
