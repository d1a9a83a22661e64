"""What a model folder holds, found without reading a weight: its config.json and the headers of its safetensors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ModelError
from .safetensors_file import TensorInfo, read_header


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
    module = _architecture(config, folder)
    spec = module.spec(config)
    files = _weight_files(folder)
    tensors = {name: info for file in files for name, info in read_header(folder / file).items()}
    _check_weights(folder, module, spec, tensors)
    by_dtype: dict[str, int] = {}
    for info in tensors.values():
        by_dtype[info.dtype] = by_dtype.get(info.dtype, 0) + info.elements
    return ModelSummary(
        architecture=spec.architecture,
        files=files,
        parameters=sum(by_dtype.values()),
        weight_bytes=sum(info.stop - info.start for info in tensors.values()),
        dtype=max(by_dtype, key=lambda dtype: by_dtype[dtype]),
        vocab=spec.vocab,
        context=spec.context,
        experts=spec.experts,
        experts_per_token=spec.experts_per_token,
    )


def _architecture(config: dict[str, Any], folder: Path) -> ModuleType:
    """The module of `engine/models` for `architectures[0]`: `Qwen3MoeForCausalLM` is `qwen3_moe`."""
    listed = config.get("architectures")
    if not isinstance(listed, list) or not listed or not isinstance(listed[0], str):
        raise ModelError(f"{folder / 'config.json'} names no architecture")
    name = listed[0].removesuffix("ForCausalLM")
    stem = "".join(f"_{c.lower()}" if c.isupper() and at else c.lower() for at, c in enumerate(name))
    package = f"{__package__.rpartition('.')[0]}.models"
    if name != listed[0] and stem in {file.stem for file in (Path(__file__).parents[1] / "models").glob("*.py")}:
        module = import_module(f"{package}.{stem}")
        if hasattr(module, "spec") and hasattr(module, "weights"):
            return module
    raise ModelError(f"{folder}: architecture {listed[0]} is not supported")


def _check_weights(folder: Path, module: ModuleType, spec: Any, tensors: dict[str, TensorInfo]) -> None:
    """Every tensor that the architecture wants is there in one of its known layouts, in the right shape."""
    for wanted in module.weights(spec).values():
        layout = next((sources for sources in wanted.layouts if sources[0].name in tensors), wanted.layouts[0])
        for source in layout:
            info = tensors.get(source.name)
            if info is None:
                raise ModelError(f"{folder}: tensor {source.name} is missing from the weights")
            if info.shape != source.shape:
                raise ModelError(f"{folder}: tensor {source.name} has shape {info.shape}, not {source.shape}")


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
