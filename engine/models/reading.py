"""Reads a Hugging Face config field by field; whatever would change the maths and is not understood is an error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import ModelError
from .spec import RopeKind, RopeSpec

# Fields of other families (or of forks of these) with the values that leave a plain decoder as it is.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "alibi": (False,),
    "attention_multiplier": (1, 1.0),
    "attn_logit_softcapping": (),
    "attention_sinks": (False,),
    "clip_qkv": (),
    "embedding_multiplier": (1, 1.0),
    "final_logit_softcapping": (),
    "first_k_dense_replace": (0,),
    "kv_lora_rank": (),
    "logit_scale": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "n_shared_experts": (0,),
    "no_rope_layers": ([],),
    "num_shared_experts": (0,),
    "residual_multiplier": (1, 1.0),
    "rope_interleaved": (False,),
    "shared_expert_intermediate_size": (0,),
    "use_qk_norm": (False,),
}

_ROPE_KINDS: dict[str, RopeKind] = {
    "default": "default",
    "linear": "linear",
    "dynamic": "dynamic",
    "yarn": "yarn",
    "llama3": "llama3",
    "longrope": "longrope",
}
_ROPE_FIELDS = {
    "default": set[str](),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "yarn": {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "longrope": {"factor", "attention_factor", "short_factor", "long_factor"},
}


class Fields:
    """Typed access to a config. Every complaint is a `ModelError` that names the field."""

    def __init__(self, config: Mapping[str, Any], where: str = "") -> None:
        self._config = config
        self._where = where

    def __contains__(self, name: str) -> bool:
        """Present, and not null."""
        return self._config.get(name) is not None

    def raw(self, name: str) -> Any:
        return self._config.get(name)

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._wrong(name, value, f"an integer of at least {least}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise self._wrong(name, value, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def numbers(self, name: str) -> tuple[float, ...]:
        value = self._value(name, None)
        if not isinstance(value, list) or not all(isinstance(x, (int, float)) and x > 0 for x in value):
            raise self._wrong(name, value, "a list of positive numbers")
        return tuple(float(x) for x in value)

    def ids(self, name: str) -> tuple[int, ...]:
        """One token id, a list of them, or nothing."""
        value = self._config.get(name)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(x, int) and not isinstance(x, bool) and x >= 0 for x in ids):
            raise self._wrong(name, value, "token ids")
        return tuple(ids)

    def refuse(self, name: str, *neutral: Any) -> None:
        """Accept the field only when absent, null or one of `neutral`."""
        value = self._config.get(name)
        if value is not None and value not in neutral:
            raise ModelError(f"config.json: {self._where}{name} = {value!r} is not supported for this architecture")

    def _value(self, name: str, default: Any) -> Any:
        value = self._config.get(name)
        if value is not None:
            return value
        if default is None:
            raise ModelError(f"config.json: {self._where}{name} is missing")
        return default

    def _wrong(self, name: str, value: Any, wanted: str) -> ModelError:
        return ModelError(f"config.json: {self._where}{name} must be {wanted}, not {value!r}")


def refuse_unknown_maths(fields: Fields) -> None:
    """Raise `ModelError` for fields known to change a decoder's maths in ways that none of these files describe."""
    for name, neutral in _NEUTRAL.items():
        fields.refuse(name, *neutral)
    fields.refuse("hidden_act", "silu", "swish")


def read_rope(fields: Fields, head_dim: int, longest: int, default_theta: float = 10000.0) -> RopeSpec:
    """Rotary parameters, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    `longest` is the config's `max_position_embeddings`. These families rotate whole heads, so a partial rotary factor
    is refused.
    """
    fields.refuse("partial_rotary_factor", 1, 1.0)
    raw = fields.raw("rope_scaling") or fields.raw("rope_parameters") or {}
    if not isinstance(raw, dict):
        raise ModelError(f"config.json: rope_parameters must be a table, not {raw!r}")
    rope = Fields(raw, "rope_parameters.")
    rope.refuse("partial_rotary_factor", 1, 1.0)
    name = raw.get("rope_type") or raw.get("type") or "default"
    kind = _ROPE_KINDS.get(name)
    if kind is None:
        raise ModelError(f"config.json: rope type {name!r} is not supported (known: {', '.join(_ROPE_KINDS)})")
    understood = _ROPE_FIELDS[kind] | {
        "rope_type",
        "type",
        "rope_theta",
        "partial_rotary_factor",
        "original_max_position_embeddings",
    }
    for key, value in raw.items():
        if key not in understood and value is not None:
            raise ModelError(f"config.json: rope_parameters.{key} is not supported for rope type {name!r}")
    theta = rope.number("rope_theta", fields.number("rope_theta", default_theta))
    if kind == "default":
        return RopeSpec(kind=kind, theta=theta, dim=head_dim, max_position=longest)

    holder = fields if "original_max_position_embeddings" in fields else rope
    original = holder.count("original_max_position_embeddings", longest)
    factor = rope.number("factor", longest / original if kind in ("yarn", "longrope") else None)
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()
    if kind == "longrope":
        short, long = rope.numbers("short_factor"), rope.numbers("long_factor")
        if len(short) != head_dim // 2 or len(long) != head_dim // 2:
            raise ModelError(f"config.json: rope_parameters: longrope factors must have {head_dim // 2} entries")
    return RopeSpec(
        kind=kind,
        theta=theta,
        dim=head_dim,
        max_position=longest,
        factor=factor,
        original=original,
        attention_factor=_attention_factor(rope, kind, factor, original),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        low_freq_factor=rope.number("low_freq_factor", None if kind == "llama3" else 1.0),
        high_freq_factor=rope.number("high_freq_factor", None if kind == "llama3" else 4.0),
        short_factor=short,
        long_factor=long,
    )


def read_windows(fields: Fields, layers: int) -> tuple[int, ...]:
    """Sliding window of each layer in tokens, 0 for full attention, as Qwen2 and Qwen3 configs put it.

    `layer_types` names the kind of each layer; without it, `use_sliding_window` turns the layers from
    `max_window_layers` on into sliding ones.
    """
    window = fields.count("sliding_window", 4096) if fields.flag("use_sliding_window", False) else 0
    kinds = fields.raw("layer_types")
    if kinds is None:
        first = fields.count("max_window_layers", 28, least=0)
        return tuple(window if index >= first else 0 for index in range(layers))
    known = {"full_attention": 0, "sliding_attention": window}
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
        raise ModelError(f"config.json: layer_types must name full or sliding attention for {layers} layers: {kinds!r}")
    if "sliding_attention" in kinds and not window:
        raise ModelError("config.json: layer_types has sliding_attention but use_sliding_window is off")
    return tuple(known[kind] for kind in kinds)


def _attention_factor(rope: Fields, kind: RopeKind, factor: float, original: int) -> float:
    """What cos and sin are multiplied by: YaRN's temperature (arXiv 2309.00071) or LongRoPE's (arXiv 2402.13753)."""
    if "attention_factor" in rope and kind in ("yarn", "longrope"):
        return rope.number("attention_factor")
    if factor <= 1:
        return 1.0
    if kind == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(original))
    if kind != "yarn":
        return 1.0
    stretch = math.log(factor)
    if rope.raw("mscale") and rope.raw("mscale_all_dim"):
        return (0.1 * rope.number("mscale") * stretch + 1) / (0.1 * rope.number("mscale_all_dim") * stretch + 1)
    return 0.1 * stretch + 1
