"""What GGUF metadata says, what it leaves out, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tiergate.engine import ModelError
from tiergate.engine.convert.gguf_config import GgufShape, hf_config, llama3_factors

SHAPE = GgufShape(vocab=100, layers=2, experts=0, tied=True, attention_bias=False, mlp_bias=False)


def metadata(arch: str = "llama", **changes: Any) -> dict[str, Any]:
    fields = {
        "context_length": 8192,
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 500000.0,
    }
    fields |= {key.replace("__", "."): value for key, value in changes.items()}
    return {f"{arch}.{key}": value for key, value in fields.items() if value is not None}


def test_defaults_of_what_a_file_may_leave_out() -> None:
    config = hf_config("llama", metadata(attention__head_count_kv=None, rope__freq_base=None), SHAPE)
    assert config["num_key_value_heads"] == config["num_attention_heads"] == 4
    assert config["head_dim"] == 16
    assert config["rope_theta"] == 10000.0
    assert config["rope_scaling"] is None


def test_neutral_values_of_keys_that_matter_elsewhere() -> None:
    plain = hf_config("llama", metadata(), SHAPE)
    neutral = metadata(attention__causal=True, rope__scaling__attn_factor=1.0, expert_shared_count=0, expert_count=0)
    assert hf_config("llama", neutral, SHAPE) == plain


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention__causal": False}, "llama.attention.causal"),
        ({"logit_scale": 0.5}, "llama.logit_scale"),
        ({"attention__sliding_window": 4096}, "sliding_window"),
        ({"attention__layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon"),
        ({"attention__layer_norm_rms_epsilon": math.nan}, "layer_norm_rms_epsilon"),
        ({"attention__head_count": 0}, "head_count"),
        ({"context_length": "long"}, "context_length"),
        ({"attention__key_length": 16, "attention__value_length": 32}, "head sizes"),
        ({"rope__dimension_count": 8}, "part of each head"),
        ({"block_count": 3}, "block_count = 3, but the tensors are of 2"),
        ({"expert_count": 8}, "expert_count = 8"),
        ({"feed_forward_length": [96, 128]}, "differs from layer to layer"),
        ({"rope__scaling__type": "longrope", "rope__scaling__factor": 2.0}, "longrope"),
        ({"rope__scaling__type": "linear"}, "rope.scaling.factor"),
    ],
)
def test_what_is_not_understood_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        hf_config("llama", metadata(**changes), SHAPE)


def test_unknown_architecture() -> None:
    with pytest.raises(ModelError, match="'gemma' is not known; known: llama, qwen2, qwen3, qwen3moe"):
        hf_config("gemma", metadata("gemma"), SHAPE)


def test_linear_and_yarn_scaling() -> None:
    linear = hf_config("llama", metadata(rope__scaling__type="linear", rope__scaling__factor=4.0), SHAPE)
    assert linear["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    yarn = metadata(
        "qwen2", rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=32768
    )
    scaling = hf_config("qwen2", yarn, SHAPE)["rope_scaling"]
    assert scaling["original_max_position_embeddings"] == 32768
    assert (scaling["beta_fast"], scaling["beta_slow"]) == (32.0, 1.0)


@given(factor=st.floats(1.0, 64.0), theta=st.sampled_from([10000.0, 500000.0]), half=st.sampled_from([8, 32, 64]))
def test_llama3_scaling_is_recognised_by_its_divisors(factor: float, theta: float, half: int) -> None:
    config = metadata(attention__key_length=2 * half, rope__freq_base=theta)
    found = hf_config("llama", config, replace(SHAPE, rope_factors=tuple(llama3_factors(factor, theta, 2 * half))))
    scaling = found["rope_scaling"]
    assert math.isclose(scaling["factor"], max(llama3_factors(factor, theta, 2 * half)))
    assert (scaling["rope_type"], scaling["original_max_position_embeddings"]) == ("llama3", 8192)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_divisors_are_those_of_transformers(factor: float) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(head_dim=128, max_position_embeddings=131072, rope_parameters=rope)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500000.0 ** (-torch.arange(0, 128, 2) / 128)
    torch.testing.assert_close(plain / scaled, torch.tensor(llama3_factors(factor, 500000.0, 128)), rtol=1e-4, atol=0)


def test_other_divisors_are_refused() -> None:
    with pytest.raises(ModelError, match="rope_freqs"):
        hf_config("llama", metadata(), replace(SHAPE, rope_factors=(1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0)))
    with pytest.raises(ModelError, match="rope_freqs"):
        hf_config("llama", metadata(), replace(SHAPE, rope_factors=(1.0,)))


def test_mixture_of_experts() -> None:
    moe = replace(SHAPE, experts=8)
    mixtral = hf_config("llama", metadata(expert_count=8, expert_used_count=2), moe)
    assert (mixtral["architectures"], mixtral["num_local_experts"]) == (["MixtralForCausalLM"], 8)
    qwen = metadata("qwen3moe", expert_count=8, expert_used_count=2, expert_feed_forward_length=24)
    config = hf_config("qwen3moe", qwen, moe)
    assert (config["num_experts"], config["num_experts_per_tok"], config["moe_intermediate_size"]) == (8, 2, 24)
    assert config["norm_topk_prob"] is True
    biased = replace(moe, attention_bias=True)
    with pytest.raises(ModelError, match="Mixtral with attention biases"):
        hf_config("llama", metadata(expert_count=8, expert_used_count=2), biased)
