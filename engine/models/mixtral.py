"""Mixtral: plain grouped-query attention, routed experts in every layer, optionally one sliding window for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ModelError
from .layout import experts, trunk
from .reading import Fields, read_rope, refuse_unknown_maths
from .spec import AttentionSpec, LayerSpec, ModelSpec, MoeSpec, Weight


def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a `MixtralForCausalLM` config. Raises `ModelError` for anything it does not understand."""
    fields = Fields(config)
    refuse_unknown_maths(fields)
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", hidden // heads)
    count = fields.count("num_local_experts", fields.count("num_experts", 8))
    active = fields.count("num_experts_per_tok", 2)
    if active > count:
        raise ModelError(f"config.json: num_experts_per_tok = {active} of only {count} experts")
    layer = LayerSpec(
        attention=AttentionSpec(
            heads=heads,
            kv_heads=fields.count("num_key_value_heads", 8),
            head_dim=head_dim,
            scale=head_dim**-0.5,
            window=fields.count("sliding_window", 0, least=0),
        ),
        mlp=MoeSpec(experts=count, active=active, width=fields.count("intermediate_size"), renormalise=True),
    )
    return ModelSpec(
        architecture="mixtral",
        vocab=fields.count("vocab_size"),
        hidden=hidden,
        norm_eps=fields.number("rms_norm_eps", 1e-5),
        tied=fields.flag("tie_word_embeddings", False),
        rope=read_rope(fields, head_dim, fields.count("max_position_embeddings", 131072), 1000000.0),
        layers=(layer,) * fields.count("num_hidden_layers"),
        eos=fields.ids("eos_token_id"),
    )


def weights(spec: ModelSpec) -> dict[str, Weight]:
    """Where a checkpoint keeps each operand; the published one names gate, down and up `w1`, `w2` and `w3`."""
    return trunk(spec) | experts(spec, "block_sparse_moe.", ("w1", "w3", "w2"), fused="mlp.")
