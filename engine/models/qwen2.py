"""Qwen2 (and Qwen2.5): biases on queries, keys and values, sliding windows in some layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .layout import dense, trunk
from .reading import Fields, read_rope, read_windows, refuse_unknown_maths
from .spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, Weight


def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a `Qwen2ForCausalLM` config. Raises `ModelError` for anything it does not understand."""
    fields = Fields(config)
    refuse_unknown_maths(fields)
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", hidden // heads)
    kv_heads = fields.count("num_key_value_heads", 32)
    mlp = MlpSpec(width=fields.count("intermediate_size"))
    layers = tuple(
        LayerSpec(
            attention=AttentionSpec(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                scale=head_dim**-0.5,
                window=window,
                qkv_bias=True,
            ),
            mlp=mlp,
        )
        for window in read_windows(fields, fields.count("num_hidden_layers"))
    )
    return ModelSpec(
        architecture="qwen2",
        vocab=fields.count("vocab_size"),
        hidden=hidden,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        tied=fields.flag("tie_word_embeddings", False),
        rope=read_rope(fields, head_dim, fields.count("max_position_embeddings", 32768)),
        layers=layers,
        eos=fields.ids("eos_token_id"),
    )


def weights(spec: ModelSpec) -> dict[str, Weight]:
    """Where a checkpoint keeps each operand."""
    return trunk(spec) | dense(spec, "mlp.")
