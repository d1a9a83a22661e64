"""Which tensors a checkpoint of a given config.json must hold, by the engine's own account of the architecture."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..architecture import architecture
from ..errors import ModelError
from ..models.spec import ModelSpec


def read_spec(config: Mapping[str, Any], tensors: Collection[str]) -> ModelSpec:
    """The model that `config` describes. `tensors` are the names in its checkpoint.

    Raises `ModelError` when the architecture is unknown or a field of the config is missing, wrong or not understood.
    """
    layers = config.get("num_hidden_layers")
    if isinstance(layers, int) and layers > len(tensors):
        # Before a damaged number makes a description of a billion layers.
        raise ModelError(f"config.json: num_hidden_layers = {layers}, but there are only {len(tensors)} tensors")
    spec: ModelSpec = architecture(config).spec(config)
    return spec


def check_tensors(config: Mapping[str, Any], spec: ModelSpec, shapes: Mapping[str, tuple[int, ...]]) -> set[str]:
    """The names among `shapes` that the model uses.

    Raises `ModelError` unless every tensor that it wants is there in its shape, in one of its layouts.
    """
    used = set()
    for wanted in architecture(config).weights(spec).values():
        layout = next((sources for sources in wanted.layouts if sources[0].name in shapes), wanted.layouts[0])
        for source in layout:
            if source.name not in shapes:
                raise ModelError(f"tensor {source.name} is missing from the weights")
            if shapes[source.name] != source.shape:
                raise ModelError(f"tensor {source.name} has shape {shapes[source.name]}, not {source.shape}")
            used.add(source.name)
    return used
