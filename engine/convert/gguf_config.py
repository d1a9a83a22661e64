"""From a GGUF's metadata to the config.json of the same model. Pure.

Keys that could change the arithmetic and that are not understood are errors: a model that loads and then answers
wrongly is worse than one that does not load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ModelError

Json = dict[str, Any]

_UNDERSTOOD = frozenset({
    "context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon",
    "attention.key_length", "attention.value_length", "rope.freq_base", "rope.dimension_count",
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    "expert_count", "expert_used_count", "expert_feed_forward_length",
})  # fmt: skip

_NEUTRAL: Mapping[str, Any] = {
    "attention.causal": True,
    "expert_gating_func": 1,
    "expert_shared_count": 0,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "use_parallel_residual": False,
}
"""Keys that are harmless at exactly this value (`expert_gating_func` 1 is softmax)."""


@dataclass(frozen=True, slots=True)
class GgufShape:
    """What the tensors tell that the metadata does not."""

    vocab: int
    """Rows of the embedding."""
    layers: int
    experts: int
    """Experts that lie stacked in a tensor; 0 if none do."""
    tied: bool
    """No output matrix of its own."""
    attention_bias: bool
    mlp_bias: bool
    rope_factors: tuple[float, ...] = ()
    """Divisors of the rotary frequencies (the tensor `rope_freqs.weight` of Llama 3), half a head of them."""


def hf_config(architecture: str, metadata: Mapping[str, Any], shape: GgufShape) -> Json:
    """The config.json of the model, in the names of `transformers`.

    Raises `ModelError` for an unknown architecture, a missing key, or a key that is not understood.
    """
    builders: Mapping[str, Callable[[_Keys, GgufShape], Json]] = {
        "llama": _llama,
        "qwen2": _qwen2,
        "qwen3": _qwen3,
        "qwen3moe": _qwen3_moe,
    }
    if architecture not in builders:
        raise ModelError(f"GGUF architecture {architecture!r} is not known; known: {', '.join(builders)}")
    keys = _Keys(architecture, metadata)
    keys.check()
    for name, found in {"block_count": shape.layers, "expert_count": shape.experts}.items():
        if keys.get(name, 0) != found:
            raise ModelError(f"GGUF key {architecture}.{name} = {keys.get(name)!r}, but the tensors are of {found}")
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _TOKEN_IDS.items()}
    return {**builders[architecture](keys, shape), **ids}


_TOKEN_IDS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}


@dataclass(frozen=True, slots=True)
class _Keys:
    """The metadata under one architecture's prefix."""

    prefix: str
    metadata: Mapping[str, Any]

    def check(self) -> None:
        for key, value in self.metadata.items():
            name = key.removeprefix(f"{self.prefix}.")
            if name == key or name in _UNDERSTOOD or (name in _NEUTRAL and value == _NEUTRAL[name]):
                continue
            raise ModelError(f"GGUF key {key} = {value!r} is not understood; the model might compute something else")

    def get(self, name: str, default: Any = None) -> Any:
        value = self.metadata.get(f"{self.prefix}.{name}", default)
        if isinstance(value, Sequence) and not isinstance(value, str):
            if len(set(value)) != 1:
                raise ModelError(f"GGUF key {self.prefix}.{name} differs from layer to layer")
            return value[0]
        return value

    def int(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or value <= 0:
            raise ModelError(f"GGUF key {self.prefix}.{name} must be a positive integer, not {value!r}")
        return value

    def float(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ModelError(f"GGUF key {self.prefix}.{name} must be a positive number, not {value!r}")
        return float(value)


def _decoder(keys: _Keys, shape: GgufShape) -> Json:
    """What all of the architectures share."""
    heads = keys.int("attention.head_count")
    hidden = keys.int("embedding_length")
    head_dim = keys.int("attention.key_length", hidden // heads)
    if keys.int("attention.value_length", head_dim) != head_dim:
        raise ModelError("GGUF: keys and values of different head sizes are not supported")
    if keys.int("rope.dimension_count", head_dim) != head_dim:
        raise ModelError("GGUF: rotary embedding of a part of each head is not supported")
    return {
        "vocab_size": shape.vocab,
        "hidden_size": hidden,
        "intermediate_size": keys.int("feed_forward_length"),
        "num_hidden_layers": keys.int("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.int("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": keys.int("context_length"),
        "rms_norm_eps": keys.float("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.float("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(keys, shape, head_dim),
        "tie_word_embeddings": shape.tied,
        "dtype": "bfloat16",
    }


def _llama(keys: _Keys, shape: GgufShape) -> Json:
    """GGUF calls Llama, SmolLM2, Mistral and Mixtral alike `llama`; experts tell the last one apart."""
    base = _decoder(keys, shape)
    if keys.get("expert_count", 0):
        if shape.attention_bias or base["rope_scaling"]:
            raise ModelError("GGUF: a Mixtral with attention biases or scaled rotary embedding is not known")
        return {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            **base,
            "num_local_experts": keys.int("expert_count"),
            "num_experts_per_tok": keys.int("expert_used_count"),
            "sliding_window": None,
        }
    biases = {"attention_bias": shape.attention_bias, "mlp_bias": shape.mlp_bias}
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **base, **biases}


def _qwen2(keys: _Keys, shape: GgufShape) -> Json:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        **_decoder(keys, shape),
        "use_sliding_window": False,
    }


def _qwen3(keys: _Keys, shape: GgufShape) -> Json:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **_decoder(keys, shape),
        "attention_bias": shape.attention_bias,
        "use_sliding_window": False,
    }


def _qwen3_moe(keys: _Keys, shape: GgufShape) -> Json:
    """llama.cpp always renormalises this architecture's expert weights, so a file cannot say otherwise."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        **_decoder(keys, shape),
        "attention_bias": shape.attention_bias,
        "use_sliding_window": False,
        "num_experts": keys.int("expert_count"),
        "num_experts_per_tok": keys.int("expert_used_count"),
        "moe_intermediate_size": keys.int("expert_feed_forward_length"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _rope_scaling(keys: _Keys, shape: GgufShape, head_dim: int) -> Json | None:
    kind = keys.get("rope.scaling.type", "none")
    if shape.rope_factors:
        if kind != "none":
            raise ModelError("GGUF: rope_freqs together with another rotary scaling is not known")
        return _llama3_scaling(shape.rope_factors, keys.float("rope.freq_base", 10000.0), head_dim)
    if kind == "none":
        return None
    factor = keys.float("rope.scaling.factor")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": keys.int("rope.scaling.original_context_length"),
            "beta_fast": keys.float("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": keys.float("rope.scaling.yarn_beta_slow", 1.0),
        }
    raise ModelError(f"GGUF: rotary scaling of type {kind!r} is not known")


_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192
"""The constants of every published Llama 3.x; a GGUF holds only the divisors that they lead to."""


def _llama3_scaling(factors: Sequence[float], theta: float, head_dim: int) -> Json:
    """Find the `llama3` rotary scaling that gives these divisors, and make sure that it does."""
    factor = max(factors)
    expected = llama3_factors(factor, theta, 2 * len(factors))
    if len(factors) != head_dim // 2 or not all(map(_close, factors, expected)):
        raise ModelError("GGUF: rope_freqs does not follow the Llama 3 scaling")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-3)


def llama3_factors(factor: float, theta: float, head_dim: int) -> list[float]:
    """Divisors of the rotary frequencies under Llama 3's scaling, one a pair of dimensions.

    Wavelengths shorter than context / high are kept, longer than context / low divided by `factor`, and those between
    interpolated (`_compute_llama3_parameters` of transformers).
    """
    divisors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / head_dim)
        if wavelength < _LLAMA3_CONTEXT / _LLAMA3_HIGH:
            divisors.append(1.0)
        elif wavelength > _LLAMA3_CONTEXT / _LLAMA3_LOW:
            divisors.append(factor)
        else:
            smooth = (_LLAMA3_CONTEXT / wavelength - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors
