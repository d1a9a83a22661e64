"""Tiny GGUF files, written from transformers models by gguf's own writer and its own table of names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

ARCHITECTURES = {"llama": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe"}
"""Model type to GGUF's name for it."""

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<jupyter_script>", "<empty_output>")
USER_DEFINED = "<tool>"

_TEXT = (
    "The quick brown fox jumps over the lazy dog. 3.14159 and 2718 are numbers; naïve café, 日本語 and русский are "
    "words; they're it'll don't WE'VE.\n\n\tdef f(x):\n        return x ** 2  # two   spaces\r\n"
)


@cache
def tokenizer(pre: str) -> Tokenizer:
    """A byte-level BPE tokenizer that cuts text as `smollm`, `gpt-2`, `qwen2` or `llama-bpe` do."""
    built = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre in ("smollm", "gpt-2"))
    first: list[Any] = []
    if pre == "smollm":
        first = [pre_tokenizers.Digits(individual_digits=True)]
    elif pre in ("qwen2", "llama-bpe"):
        numbers = "{1,3}" if pre == "llama-bpe" else ""
        pattern = (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            + numbers
            + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
        first = [pre_tokenizers.Split(Regex(pattern), behavior="isolated")]
    built.pre_tokenizer = pre_tokenizers.Sequence([*first, split])
    if pre == "qwen2":
        built.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[*CONTROL, USER_DEFINED],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    built.train_from_iterator([_TEXT], trainer)
    return built


def write_gguf(
    path: Path,
    model: transformers.PreTrainedModel,
    *,
    type: Type = Type.F32,
    pre: str = "smollm",
    template: str | None = "{{ messages }}",
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write `model`'s weights (norms and biases in F32, the embedding in Q8_0 when `type` is quantised) and a
    tokenizer as llama.cpp's converter would. `extra` are further metadata by their full keys."""
    config = model.config
    arch = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    experts = getattr(config, "num_experts", None) or 0
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type == "qwen3_moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    _add_tokenizer(writer, pre)
    if template is not None:
        writer.add_chat_template(template)
    for key, value in (extra or {}).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, value)
    for name, tensor in tensors(model).items():
        _add_tensor(writer, name, tensor, type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(model: transformers.PreTrainedModel) -> dict[str, np.ndarray[Any, Any]]:
    """The model's weights under GGUF's names and in its layouts."""
    config = model.config
    arch = ARCHITECTURES[config.model_type]
    names = gguf.get_tensor_name_map(
        next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), config.num_hidden_layers
    )
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value = parameter.detach().float().numpy()
        if name.endswith("experts.gate_up_proj"):
            layer = name.split(".")[2]
            gate, up = np.split(value, 2, axis=1)
            found[f"blk.{layer}.ffn_gate_exps.weight"], found[f"blk.{layer}.ffn_up_exps.weight"] = gate, up
            continue
        if name.endswith("experts.down_proj"):
            found[f"blk.{name.split('.')[2]}.ffn_down_exps.weight"] = value
            continue
        if name.endswith("mlp.gate.weight"):
            found[f"blk.{name.split('.')[2]}.ffn_gate_inp.weight"] = value
            continue
        stem, kind = name.rsplit(".", 1)
        found[f"{names.get_name(stem)}.{kind}"] = _permuted(name, value, config) if arch == "llama" else value
    return found


def _permuted(name: str, value: np.ndarray[Any, Any], config: Any) -> np.ndarray[Any, Any]:
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
    if name.split(".")[-2] not in ("q_proj", "k_proj"):
        return value
    heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
    parts = value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:])
    return parts.swapaxes(1, 2).reshape(value.shape)


def _add_tensor(writer: gguf.GGUFWriter, name: str, value: np.ndarray[Any, Any], type: Type) -> None:
    value = np.ascontiguousarray(value)
    if value.ndim == 1 or "ffn_gate_inp" in name or type == Type.F32:
        writer.add_tensor(name, value)
        return
    if name == "token_embd.weight" and type not in (Type.F16, Type.BF16):
        type = Type.Q8_0
    writer.add_tensor(name, gguf.quantize(value, type), raw_dtype=type)


def _add_tokenizer(writer: gguf.GGUFWriter, pre: str) -> None:
    raw = json.loads(tokenizer(pre).to_str())
    vocab: dict[str, int] = raw["model"]["vocab"]
    tokens = sorted(vocab, key=lambda token: vocab[token])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    kinds = {**dict.fromkeys(CONTROL, gguf.TokenType.CONTROL), USER_DEFINED: gguf.TokenType.USER_DEFINED}
    writer.add_token_types([kinds.get(token, gguf.TokenType.NORMAL) for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in raw["model"]["merges"]])
    for add, token in ((writer.add_bos_token_id, 1), (writer.add_eos_token_id, 2), (writer.add_pad_token_id, 2)):
        add(tokens.index(CONTROL[token]))
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(pre == "llama-bpe")


def rounded(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """The model with every weight rounded to what bf16 can hold, still in float32."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    return model
