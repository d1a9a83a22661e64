"""What a model folder holds, found without reading a weight: its config.json and the headers of its safetensors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ..errors import ModelError
from ..quant.scheme import plain_shapes, read_scheme
from .expected import check_tensors, read_spec
from .safetensors_file import read_header


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """A folder that the engine can load."""

    architecture: str
    """Name of its module in `engine/models`."""
    files: tuple[str, ...]
    """Names of the weight files."""
    parameters: int
    weight_bytes: int
    dtype: str
    """The dtype most of its parameters have, in the names of the safetensors format (`BF16`, `F32`...)."""
    vocab: int
    context: int
    """Most tokens of a sequence by the model's own account."""
    experts: int
    """Routed experts a layer; 0 for a dense model."""
    experts_per_token: int


def inspect_model(folder: Path) -> ModelSummary:
    """See `tiergate.engine.inspect_model`."""
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder")
    config = _read_json(folder / "config.json")
    files = _weight_files(folder)
    tensors = {name: info for file in files for name, info in read_header(folder / file).items()}
    try:
        shapes = plain_shapes(read_scheme(config), {name: info.shape for name, info in tensors.items()})
        spec = read_spec(config, shapes)
        check_tensors(config, spec, shapes)
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from error
    by_dtype: dict[str, int] = {}
    for info in tensors.values():
        by_dtype[info.dtype] = by_dtype.get(info.dtype, 0) + info.elements
    return ModelSummary(
        architecture=spec.architecture,
        files=files,
        parameters=sum(map(prod, shapes.values())),
        weight_bytes=sum(info.stop - info.start for info in tensors.values()),
        dtype=max(by_dtype, key=lambda dtype: by_dtype[dtype]),
        vocab=spec.vocab,
        context=spec.context,
        experts=spec.experts,
        experts_per_token=spec.experts_per_token,
    )


def _weight_files(folder: Path) -> tuple[str, ...]:
    """model.safetensors, or the shards that an index names."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return ("model.safetensors",)
    shards = _read_json(index).get("weight_map")
    names = set(shards.values()) if isinstance(shards, dict) else set()
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise ModelError(f"{index} is damaged")
    return tuple(sorted(names))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not JSON") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value
