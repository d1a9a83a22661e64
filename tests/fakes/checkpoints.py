"""Tiny random checkpoints in Hugging Face's layout, written by transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

_SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_CLASSES = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
        },
    ),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


def tiny_model(arch: str = "llama", seed: int = 0, **config: Any) -> transformers.PreTrainedModel:
    """A random transformers model of `arch` (a file name of `engine/models`) in float32, ready for inference.

    `config` overrides fields of a small default (vocabulary 96, width 32, 2 layers, 4 query heads on 2 key heads).
    Weights are spread wide enough that logits differ clearly and greedy decoding does not get stuck on ties; norms
    and biases are random too, so that a dropped one shows.
    """
    name, extra = _CLASSES[arch]
    built = getattr(transformers, name)(**{**_SMALL, **extra, **config})
    # Its own generator state: callers' random streams stay as they were.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(built, dtype=torch.float32)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if key.endswith("norm.weight"):
                    parameter.uniform_(0.5, 1.5)
                else:
                    parameter.normal_(std=0.1 if key.endswith("bias") else parameter.shape[-1] ** -0.5)
    return model.eval()


def tiny_checkpoint(path: Path, arch: str = "llama", seed: int = 0, **config: Any) -> Path:
    """Write `tiny_model(arch, seed, **config)` as a folder with config.json and safetensors, and return `path`."""
    path.mkdir(parents=True, exist_ok=True)
    tiny_model(arch, seed, **config).save_pretrained(path)
    return path
