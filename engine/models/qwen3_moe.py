"""Qwen3-MoE: Qwen3's attention, feed-forward blocks of routed experts in all or some layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ModelError
from .layout import dense, experts, trunk
from .reading import Fields, read_rope, refuse_unknown_maths
from .spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec, Weight


def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a `Qwen3MoeForCausalLM` config. Raises `ModelError` for anything it does not understand."""
    fields = Fields(config)
    refuse_unknown_maths(fields)
    heads = fields.count("num_attention_heads")
    hidden = fields.count("hidden_size")
    head_dim = fields.count("head_dim", hidden // heads)
    bias = fields.flag("attention_bias", False)
    attention = AttentionSpec(
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", 4),
        head_dim=head_dim,
        scale=head_dim**-0.5,
        # Unlike the dense models, a window here holds for every layer.
        window=fields.count("sliding_window", 4096) if fields.flag("use_sliding_window", False) else 0,
        qkv_bias=bias,
        out_bias=bias,
        head_norm=True,
    )
    return ModelSpec(
        architecture="qwen3_moe",
        vocab=fields.count("vocab_size"),
        hidden=hidden,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        tied=fields.flag("tie_word_embeddings", False),
        rope=read_rope(fields, head_dim, fields.count("max_position_embeddings", 32768)),
        layers=tuple(LayerSpec(attention=attention, mlp=mlp) for mlp in _feed_forward(fields)),
        eos=fields.ids("eos_token_id"),
    )


def _feed_forward(fields: Fields) -> list[MlpSpec | MoeSpec]:
    """Experts in every `decoder_sparse_step`-th layer, except those that `mlp_only_layers` lists."""
    count = fields.count("num_experts", fields.count("num_local_experts", 128, least=0), least=0)
    active = fields.count("num_experts_per_tok", 8)
    if count and active > count:
        raise ModelError(f"config.json: num_experts_per_tok = {active} of only {count} experts")
    sparse = MoeSpec(
        experts=count,
        active=active,
        width=fields.count("moe_intermediate_size", 768),
        renormalise=fields.flag("norm_topk_prob", False),
    )
    plain = MlpSpec(width=fields.count("intermediate_size", 6144))
    step, only = fields.count("decoder_sparse_step", 1), fields.raw("mlp_only_layers") or []
    return [
        sparse if count and index not in only and (index + 1) % step == 0 else plain
        for index in range(fields.count("num_hidden_layers"))
    ]


def weights(spec: ModelSpec) -> dict[str, Weight]:
    """Where a checkpoint keeps each operand."""
    return trunk(spec) | dense(spec, "mlp.") | experts(spec, "mlp.", ("gate_proj", "up_proj", "down_proj"))
