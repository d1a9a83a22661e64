"""Reads a Hugging Face style model folder: config.json, generation_config.json and safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from .architecture import architecture
from .errors import ModelError
from .models.spec import ModelSpec, Source, Weight

_IGNORED = (".rotary_emb.inv_freq",)
"""Endings of tensors that old checkpoints store although they follow from the config."""


def read_spec(folder: Path) -> ModelSpec:
    """The model of `folder` as data. Raises `ModelError` naming what is missing, damaged or unknown."""
    config = _read_json(folder / "config.json")
    spec: ModelSpec = architecture(config).spec(config)
    generation = folder / "generation_config.json"
    if generation.is_file():
        # What generation names comes on top: chat models end turns with ids that config.json does not know.
        ids = _read_json(generation).get("eos_token_id")
        extra = ids if isinstance(ids, list) else [] if ids is None else [ids]
        spec = replace(spec, eos=tuple(dict.fromkeys((*spec.eos, *(int(x) for x in extra)))))
    return spec


def load_weights(folder: Path, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
    """The decoder's operands by the names of `<architecture>.weights`, in `dtype` on `device`.

    Files are memory-mapped and read tensor by tensor, so the peak is the converted model and one tensor. Raises
    `ModelError` for tensors that are missing, unknown or of another shape.
    """
    wanted: dict[str, Weight] = import_module(f".models.{spec.architecture}", __package__).weights(spec)
    with ExitStack() as stack:
        where: dict[str, Any] = {}
        for path in _weight_files(folder):
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as why:
                raise ModelError(f"{path.name}: {why}") from why
            where.update(dict.fromkeys(file.keys(), file))
        used: set[str] = set()
        loaded = {
            name: _assemble(weight, where, used).to(device=device, dtype=dtype).view(weight.shape)
            for name, weight in wanted.items()
        }
    allowed = used | ({"lm_head.weight"} if spec.tied else set())
    extra = sorted(name for name in where.keys() - allowed if not name.endswith(_IGNORED))
    if extra:
        raise ModelError(f"the checkpoint holds {len(extra)} tensors that this architecture has no use for: {extra[0]}")
    return loaded


def _assemble(weight: Weight, where: Mapping[str, Any], used: set[str]) -> torch.Tensor:
    sources = next((one for one in weight.layouts if one[0].name in where), weight.layouts[0])
    parts = [_read(source, where) for source in sources]
    used.update(source.name for source in sources)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _read(source: Source, where: Mapping[str, Any]) -> torch.Tensor:
    file = where.get(source.name)
    if file is None:
        raise ModelError(f"the checkpoint has no tensor {source.name}")
    tensor: torch.Tensor = file.get_tensor(source.name)
    if tuple(tensor.shape) != source.shape:
        raise ModelError(f"{source.name} has shape {list(tensor.shape)}, the config asks for {list(source.shape)}")
    if not tensor.is_floating_point():
        raise ModelError(f"{source.name} has dtype {tensor.dtype}; quantised checkpoints are not supported")
    return tensor


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = _read_json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(x, str) and Path(x).name == x for x in names.values()):
            raise ModelError(f"{index.name}: weight_map must map tensors to files of the same folder")
        files = [folder / name for name in sorted(set(names.values()))]
    else:
        files = [folder / "model.safetensors"]
    for path in files:
        if not path.is_file():
            raise ModelError(f"{folder}: {path.name} is missing")
    return files


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent}: {path.name} is missing") from None
    except (OSError, ValueError) as why:
        raise ModelError(f"{path}: {why}") from why
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object")
    return value
