"""Llama (and SmolLM2): grouped-query attention and SwiGLU, optional biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .layout import dense, trunk
from .reading import Fields, read_rope, refuse_unknown_maths
from .spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, Weight


def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a `LlamaForCausalLM` config. Raises `ModelError` for anything it does not understand."""
    fields = Fields(config)
    refuse_unknown_maths(fields)
    fields.refuse("sliding_window")
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", hidden // heads)
    bias = fields.flag("attention_bias", False)
    layer = LayerSpec(
        attention=AttentionSpec(
            heads=heads,
            kv_heads=fields.count("num_key_value_heads", heads),
            head_dim=head_dim,
            scale=head_dim**-0.5,
            qkv_bias=bias,
            out_bias=bias,
        ),
        mlp=MlpSpec(width=fields.count("intermediate_size"), bias=fields.flag("mlp_bias", False)),
    )
    return ModelSpec(
        architecture="llama",
        vocab=fields.count("vocab_size"),
        hidden=hidden,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        tied=fields.flag("tie_word_embeddings", False),
        rope=read_rope(fields, head_dim, fields.count("max_position_embeddings", 2048)),
        layers=(layer,) * fields.count("num_hidden_layers"),
        eos=fields.ids("eos_token_id"),
    )


def weights(spec: ModelSpec) -> dict[str, Weight]:
    """Where a checkpoint keeps each operand."""
    return trunk(spec) | dense(spec, "mlp.")
