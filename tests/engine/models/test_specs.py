"""Configs: what is understood, and what is refused by name rather than computed wrongly."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.checkpoints import tiny_model
from tiergate.engine import ModelError
from tiergate.engine.architecture import architecture
from tiergate.engine.models.spec import MlpSpec, ModelSpec, MoeSpec

ARCHES = ["llama", "qwen2", "qwen3", "qwen3_moe", "mixtral"]


def config(arch: str = "llama", **changes: Any) -> dict[str, Any]:
    model = tiny_model(arch)
    written: dict[str, Any] = model.config.to_dict() | {"architectures": [type(model).__name__]} | changes
    return written


def read(arch: str = "llama", **changes: Any) -> ModelSpec:
    raw = config(arch, **changes)
    spec: ModelSpec = architecture(raw).spec(raw)
    return spec


@pytest.mark.parametrize("arch", ARCHES)
def test_defaults_are_transformers_defaults(arch: str) -> None:
    """A config that leaves out what transformers would fill in describes the same model."""
    kept = {"architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"}
    kept |= {"num_attention_heads", "num_key_value_heads", "head_dim", "eos_token_id", "max_position_embeddings"}
    kept |= {"num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"}
    full = config(arch)
    sparse = {key: value for key, value in full.items() if key in kept}
    assert architecture(sparse).spec(sparse) == architecture(full).spec(full)


@pytest.mark.parametrize("arch", ARCHES)
def test_weights_cover_the_models_own_parameters(arch: str) -> None:
    raw = config(arch)
    found = architecture(raw)
    names = {s.name for w in found.weights(found.spec(raw)).values() for layout in w.layouts for s in layout}
    assert {name for name, _ in tiny_model(arch).named_parameters()} <= names


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_act", "gelu"),
        ("partial_rotary_factor", 0.5),
        ("final_logit_softcapping", 30.0),
        ("rope_interleaved", True),
        ("n_shared_experts", 1),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", True),
        ("vocab_size", "many"),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", -1e-6),
        ("max_position_embeddings", 1.5),
        ("tie_word_embeddings", 1),
        ("eos_token_id", "</s>"),
        ("rope_parameters", {"rope_type": "spiral"}),
        ("rope_parameters", {"rope_type": "linear"}),
        ("rope_parameters", {"rope_type": "default", "mrope_section": [1, 2]}),
        ("rope_parameters", {"full_attention": {"rope_type": "default"}}),
        ("rope_parameters", {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0], "factor": 2.0}),
        ("rope_parameters", {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.25}),
        ("rope_parameters", ["default"]),
    ],
)
def test_what_is_not_understood_is_refused(arch: str, field: str, value: Any) -> None:
    with pytest.raises(ModelError, match=r"(?i)" + field.split("_")[0]):
        read(arch, **{field: value})


@pytest.mark.parametrize(
    ("arch", "changes", "message"),
    [
        ("llama", {"sliding_window": 8}, "sliding_window"),
        ("llama", {"intermediate_size": None}, "intermediate_size is missing"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "use_sliding_window"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types"),
        ("qwen3", {"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ("qwen3_moe", {"num_experts_per_tok": 7}, "num_experts_per_tok"),
        ("qwen3_moe", {"shared_expert_intermediate_size": 8}, "shared_expert"),
        ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok"),
    ],
)
def test_what_an_architecture_does_not_allow_is_refused(arch: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(arch, **changes)


def test_harmless_fields_of_other_tools_are_accepted() -> None:
    assert read(is_llama_config=True, rope_interleaved=False, pretraining_tp=1, _name_or_path="x") == read()


def test_windows_by_layer() -> None:
    def windows(**changes: Any) -> list[int]:
        return [layer.attention.window for layer in read("qwen2", layer_types=None, **changes).layers]

    assert windows(num_hidden_layers=3) == [0, 0, 0]
    assert windows(num_hidden_layers=3, use_sliding_window=True, sliding_window=5, max_window_layers=2) == [0, 0, 5]
    assert windows(num_hidden_layers=2, use_sliding_window=True, sliding_window=5, max_window_layers=0) == [5, 5]
    assert [layer.attention.window for layer in read("mixtral", sliding_window=9).layers] == [9, 9]


def test_expert_layers_of_qwen3_moe() -> None:
    def kinds(**changes: Any) -> list[type]:
        return [type(layer.mlp) for layer in read("qwen3_moe", num_hidden_layers=4, **changes).layers]

    assert kinds() == [MoeSpec] * 4
    assert kinds(decoder_sparse_step=2) == [MlpSpec, MoeSpec, MlpSpec, MoeSpec]
    assert kinds(mlp_only_layers=[0, 3]) == [MlpSpec, MoeSpec, MoeSpec, MlpSpec]
    spec = read("qwen3_moe")
    assert (spec.experts, spec.experts_per_token) == (6, 3)
    assert (read().experts, read().experts_per_token) == (0, 0)


@pytest.mark.parametrize(
    ("rope", "context"),
    [
        ({"rope_type": "default"}, 256),
        ({"rope_type": "linear", "factor": 4.0}, 1024),
        ({"rope_type": "dynamic", "factor": 4.0}, 256),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
    ],
)
def test_the_context_counts_what_stretching_adds(rope: dict[str, Any], context: int) -> None:
    assert read(rope_parameters=rope).context == context
