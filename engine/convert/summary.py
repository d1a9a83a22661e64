"""What a model folder holds, from its config.json and the headers of its weights alone."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .safetensors_file import TensorInfo, read_header


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """A folder that an engine can be expected to load."""

    architecture: str
    """`architectures[0]` of its config.json."""
    parameters: int
    weight_bytes: int
    dtype: str
    """The dtype most of its parameters have, in the names of the safetensors format (`BF16`, `F32`...)."""
    vocab: int
    context: int
    """Most tokens its positions allow."""
    experts: int
    """Routed experts a layer; 0 for a dense model."""
    experts_per_token: int


def inspect_model(folder: Path) -> ModelSummary:
    """See `tiergate.engine.inspect_model`."""
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder")
    config = _config(folder)
    architecture = _architecture(folder, config)
    tensors = [info for file in _weight_files(folder) for info in read_header(file).values()]
    by_dtype: dict[str, int] = {}
    for info in tensors:
        by_dtype[info.dtype] = by_dtype.get(info.dtype, 0) + info.elements
    if not by_dtype:
        raise ModelError(f"{folder} holds no weights")
    experts = int(config.get("num_local_experts") or config.get("num_experts") or 0)
    return ModelSummary(
        architecture=architecture,
        parameters=sum(by_dtype.values()),
        weight_bytes=sum(info.stop - info.start for info in tensors),
        dtype=max(by_dtype, key=lambda dtype: by_dtype[dtype]),
        vocab=_int(folder, config, "vocab_size"),
        context=_int(folder, config, "max_position_embeddings"),
        experts=experts,
        experts_per_token=_int(folder, config, "num_experts_per_tok") if experts else 0,
    )


def known_architectures() -> list[str]:
    """The architectures that `engine/models` has a file for, in that file's spelling (`qwen3_moe`)."""
    models = Path(__file__).resolve().parent.parent / "models"
    shared = ("__init__", "spec")
    return sorted(file.stem for file in models.glob("*.py") if file.stem not in shared)


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{folder} has no config.json") from error
    except ValueError as error:
        raise ModelError(f"{folder / 'config.json'} is not JSON") from error
    if not isinstance(config, dict):
        raise ModelError(f"{folder / 'config.json'} is not an object")
    return config


def _architecture(folder: Path, config: dict[str, Any]) -> str:
    listed = config.get("architectures")
    if not isinstance(listed, list) or not listed or not isinstance(listed[0], str):
        raise ModelError(f"{folder / 'config.json'} names no architecture")
    name: str = listed[0]
    stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.removesuffix("ForCausalLM")).lower()
    if stem not in known_architectures():
        raise ModelError(f"{folder}: architecture {name} is not known; known: {', '.join(known_architectures())}")
    return name


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return [folder / "model.safetensors"]
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{index} is damaged") from error
    return [folder / name for name in sorted(names)]


def _int(folder: Path, config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise ModelError(f"{folder / 'config.json'}: {key} must be a positive integer, not {value!r}")
    return value


