"""Which Hugging Face tensors a GGUF tensor becomes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ModelError

_GLOBAL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
}
_LINEAR = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_EXPERTS = {
    "mixtral": ("block_sparse_moe", {"gate": "w1", "up": "w3", "down": "w2"}),
    "qwen3_moe": ("mlp", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}),
}
"""Model type to the module that holds the router and the experts, and the experts' names for their three matrices."""

VOCABULARY_WEIGHTS = frozenset({_GLOBAL["token_embd.weight"], _GLOBAL["output.weight"]})
"""The tensors with a row a token."""

SKIPPED = frozenset({"rope_freqs.weight"})
"""Tensors that become configuration instead."""


@dataclass(frozen=True, slots=True)
class Target:
    """One tensor to write: `heads` > 0 asks for `unpermuted_rows`, `expert` picks along the source's first axis."""

    name: str
    heads: int = 0
    expert: int | None = None


def targets(name: str, config: Mapping[str, Any]) -> list[Target]:
    """What the GGUF tensor `name` becomes under this config.json; more than one for stacked experts.

    Raises `ModelError` for a tensor that has no place in the architecture.
    """
    if name in SKIPPED:
        return []
    if name in _GLOBAL:
        return [Target(_GLOBAL[name])]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match and int(match[1]) < config["num_hidden_layers"]:
        found = _in_layer(f"model.layers.{match[1]}", match[2], match[3], config)
        if found:
            return found
    raise ModelError(f"GGUF tensor {name} has no place in a {config['model_type']} model")


def _in_layer(layer: str, part: str, kind: str, config: Mapping[str, Any]) -> list[Target]:
    if f"{part}.{kind}" in _LAYER:
        return [Target(f"{layer}.{_LAYER[f'{part}.{kind}']}")]
    if part in _LINEAR:
        return [Target(f"{layer}.{_LINEAR[part]}.{kind}", heads=_permuted_heads(part, config))]
    if config["model_type"] in _EXPERTS and kind == "weight":
        module, names = _EXPERTS[config["model_type"]]
        if part == "ffn_gate_inp":
            return [Target(f"{layer}.{module}.gate.weight")]
        stacked = re.fullmatch(r"ffn_(gate|up|down)_exps", part)
        if stacked:
            stem, matrix = f"{layer}.{module}.experts", names[stacked[1]]
            return [Target(f"{stem}.{e}.{matrix}.weight", expert=e) for e in range(_experts(config))]
    return []


def _experts(config: Mapping[str, Any]) -> int:
    return int(config.get("num_local_experts") or config["num_experts"])


def _permuted_heads(part: str, config: Mapping[str, Any]) -> int:
    """GGUF's `llama` turns each head's rotary halves into neighbouring pairs; the others keep Hugging Face's order."""
    if config["model_type"] not in ("llama", "mixtral"):
        return 0
    heads: dict[str, int] = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    return heads.get(part, 0)


def unpermuted_rows(rows: int, heads: int) -> list[int]:
    """Row r of the Hugging Face matrix is row `result[r]` of the GGUF's: pairs (2i, 2i + 1) of a head become its
    halves (i, i + head_dim / 2)."""
    head_dim = rows // heads
    half = head_dim // 2
    return [h * head_dim + 2 * i + side for h in range(heads) for side in range(2) for i in range(half)]
