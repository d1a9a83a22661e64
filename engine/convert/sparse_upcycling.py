"""Sparse upcycling (Komatsuzaki et al., arXiv 2212.05055): a dense Llama made into a mixture of experts.

Each MLP becomes `experts` copies of itself behind a router; the rest is taken over. The result is a standard Mixtral
checkpoint: its attention is Llama's, and its router gives the `top_k` chosen experts weights that sum to one.

So the untrained mixture computes what the dense model computes, whatever the router says: equal experts under
weights that sum to one. Its router therefore need not be zero, and must not be: with equal logits every token would
go to the same first experts, these alone would ever be trained, and equal experts that see equal tokens stay equal.
Small seeded noise sends different tokens to different experts from the start. It is small (`ROUTER_STD`) so that the
two weights still round to exactly 1/2 in bf16, and the bf16 mixture differs from the bf16 dense model by nothing
but the order of sums.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError
from .files import write_json
from .gguf_file import to_bf16
from .progress import Progress
from .safetensors_file import TensorInfo, TensorSlot, read_header, writing

ROUTER_STD = 1e-5
"""Standard deviation of the router's weights."""

_MATRICES = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
_COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def upcycle(folder: Path, out: Path, experts: int, top_k: int, seed: int, progress: Progress) -> None:
    """See `tiergate.engine.upcycle`."""
    if not 1 <= top_k <= experts:
        raise ModelError(f"top_k must be between 1 and the number of experts, {experts}, not {top_k}")
    config = _mixtral_config(folder, experts, top_k)
    source = folder / "model.safetensors"
    tensors = read_header(source)
    layout, origins = _layout(tensors, experts, config["hidden_size"])

    out.mkdir(parents=True, exist_ok=True)
    progress.begin("building the mixture of experts", sum(slot.nbytes for slot in layout.values()))
    data = np.memmap(source, mode="r", dtype=np.uint8)
    noise = np.random.default_rng(seed)
    with writing(out / "model.safetensors", layout) as writer:
        for name, slot in layout.items():
            origin = origins.get(name)
            if origin is None:
                chunk = to_bf16(noise.normal(0.0, ROUTER_STD, slot.shape)).tobytes()
            else:
                chunk = data[origin.start : origin.stop].tobytes()
            writer.write(name, chunk)
            progress.advance(len(chunk))
    for name in _COPIED:
        if (folder / name).exists():
            (out / name).write_bytes((folder / name).read_bytes())
    write_json(out / "config.json", config)


def _mixtral_config(folder: Path, experts: int, top_k: int) -> dict[str, Any]:
    try:
        dense: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder} has no readable config.json") from error
    if dense.get("architectures") != ["LlamaForCausalLM"] or dense.get("attention_bias") or dense.get("mlp_bias"):
        raise ModelError(f"{folder}: only a Llama without biases can be upcycled")
    dropped = ("architectures", "model_type", "attention_bias", "mlp_bias")
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        **{key: value for key, value in dense.items() if key not in dropped},
        "num_local_experts": experts,
        "num_experts_per_tok": top_k,
        "sliding_window": None,
    }


def _layout(
    tensors: dict[str, TensorInfo], experts: int, hidden: int
) -> tuple[dict[str, TensorSlot], dict[str, TensorInfo]]:
    """The tensors to write, and for all but the routers the dense tensor that they copy."""
    layout: dict[str, TensorSlot] = {}
    origins: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        if info.dtype != "BF16":
            raise ModelError(f"{name} is {info.dtype}; only a bf16 checkpoint can be upcycled")
        layer, mlp, matrix = name.removesuffix(".weight").partition(".mlp.")
        if not mlp:
            copies = [name]
        else:
            moe = f"{layer}.block_sparse_moe"
            layout[f"{moe}.gate.weight"] = TensorSlot("BF16", (experts, hidden))
            copies = [f"{moe}.experts.{e}.{_MATRICES[matrix]}.weight" for e in range(experts)]
        for copy in copies:
            layout[copy] = TensorSlot(info.dtype, info.shape)
            origins[copy] = info
    return layout, origins
