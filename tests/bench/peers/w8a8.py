"""Writes a W8A8 checkpoint in the compressed-tensors format: `python -P w8a8.py <folder> <folder to make>`.

Weights of linear layers to int8, symmetric, a scale an output channel (absolute maximum / 127); activations are
quantised by whoever runs it, a scale a token. Embedding, head and norms stay bf16.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
QUANTISATION = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**INT8, "strategy": "channel", "dynamic": False},
            "input_activations": {**INT8, "strategy": "token", "dynamic": True},
        }
    },
}


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix [out, in] as int8 [out, in] and scales float32 [out, 1]."""
    scale = weight.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / 127
    return (weight.float() / scale).round().clamp(-127, 127).to(torch.int8), scale


def convert(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    made: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            made[name], made[f"{name}_scale"] = quantise(tensor)
        else:
            made[name] = tensor
    save_file(made, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": QUANTISATION}, indent=1))
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, target / name)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
