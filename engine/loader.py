"""Reads a Hugging Face style model folder: config.json, generation_config.json and safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from .architecture import architecture
from .errors import ModelError
from .models.spec import ModelSpec, Source, Weight
from .quant import sidecar
from .quant.operands import Dense, Operand, stack
from .quant.parts import Parts
from .quant.scheme import Scheme, quantised, read_scheme

SIDECAR = "quant.safetensors"
"""Exact 4-bit values beside plain weights."""

_IGNORED = (".rotary_emb.inv_freq",)
"""Endings of tensors that old checkpoints store although they follow from the config."""


def read_spec(folder: Path) -> ModelSpec:
    """The model of `folder` as data. Raises `ModelError` naming what is missing, damaged or unknown."""
    config = _read_json(folder / "config.json")
    read_scheme(config)
    spec: ModelSpec = architecture(config).spec(config)
    generation = folder / "generation_config.json"
    if generation.is_file():
        # What generation names comes on top: chat models end turns with ids that config.json does not know.
        ids = _read_json(generation).get("eos_token_id")
        extra = ids if isinstance(ids, list) else [] if ids is None else [ids]
        spec = replace(spec, eos=tuple(dict.fromkeys((*spec.eos, *(int(x) for x in extra)))))
    return spec


def weights_of(spec: ModelSpec) -> dict[str, Weight]:
    """The operands of a model, and where checkpoints keep them."""
    wanted: dict[str, Weight] = import_module(f".models.{spec.architecture}", __package__).weights(spec)
    return wanted


def load_weights(folder: Path, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
    """The decoder's operands by the names of `<architecture>.weights`, in `dtype` on `device`.

    Files are memory-mapped and read tensor by tensor, so the peak is the converted model and one tensor. Quantised
    matrices are expanded. Raises `ModelError` for tensors that are missing, unknown or of another shape.
    """
    return {name: one.dense().to(device=device, dtype=dtype) for name, one in read_operands(folder, spec)}


def read_operands(folder: Path, spec: ModelSpec, *, codes: bool = False) -> Iterator[tuple[str, Operand]]:
    """The decoder's operands as the checkpoint keeps them, one after another in the order of `<architecture>.weights`.

    Matrices of a converted GGUF are there twice: rounded to bf16, and where they were of 4 bits as exact codes, which
    `codes` asks for. Raises `ModelError`, see `load_weights`.
    """
    with ExitStack() as files:
        scheme = read_scheme(_read_json(folder / "config.json"))
        where = _open(_weight_files(folder), files)
        beside = _open([folder / SIDECAR], files) if codes and (folder / SIDECAR).is_file() else {}
        checkpoint = _Checkpoint(where, scheme, quantised(scheme, where), beside, set())
        for name, weight in weights_of(spec).items():
            yield name, checkpoint.assemble(weight)
        checkpoint.refuse_rest({"lm_head.weight"} if spec.tied else set())


def weight_files(folder: Path) -> list[Path]:
    """All files that the model's weights are read from. Raises `ModelError` when one is missing."""
    return _weight_files(folder) + [path for path in (folder / SIDECAR,) if path.is_file()]


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    where: Mapping[str, Any]
    """Tensor name → the open file that holds it."""
    scheme: Scheme | None
    quantised: Mapping[str, str]
    """Plain name of each quantised matrix → its module's prefix."""
    beside: Mapping[str, Any]
    """Likewise, of the sidecar."""
    used: set[str]

    def assemble(self, weight: Weight) -> Operand:
        layout = next((one for one in weight.layouts if self._has(one[0].name)), weight.layouts[0])
        return stack([self._read(source) for source in layout]).view(weight.shape)

    def refuse_rest(self, allowed: set[str]) -> None:
        extra = sorted(name for name in self.where.keys() - self.used - allowed if not name.endswith(_IGNORED))
        if extra:
            raise ModelError(
                f"the checkpoint holds {len(extra)} tensors that this architecture has no use for: {extra[0]}"
            )

    def _has(self, name: str) -> bool:
        return name in self.where or name in self.quantised

    def _read(self, source: Source) -> Operand:
        at = self.quantised.get(source.name)
        if at is not None and self.scheme is not None:
            return self._codes(source, at, self.scheme)
        if source.name not in self.where:
            raise ModelError(f"the checkpoint has no tensor {source.name}")
        self.used.add(source.name)
        module = source.name.removesuffix("weight")
        if f"{module}codes" in self.beside and len(source.shape) == 2:
            parts = {part: self.beside[f"{module}{part}"] for part in sidecar.PARTS if f"{module}{part}" in self.beside}
            return sidecar.read(
                module, {part: file.get_tensor(f"{module}{part}") for part, file in parts.items()}, *source.shape
            )
        tensor: torch.Tensor = self.where[source.name].get_tensor(source.name)
        if tuple(tensor.shape) != source.shape:
            raise ModelError(f"{source.name} has shape {list(tensor.shape)}, the config asks for {list(source.shape)}")
        if not tensor.is_floating_point():
            raise ModelError(f"{source.name} has dtype {tensor.dtype}, and the config names no way it is quantised")
        return Dense(tensor)

    def _codes(self, source: Source, at: str, scheme: Scheme) -> Operand:
        stored = [part for part in scheme.parts if at + part in self.where]
        self.used.update(at + part for part in stored)
        parts = Parts(at, {part: self.where[at + part].get_tensor(at + part) for part in stored})
        shape = scheme.plain_shape(tuple(parts.tensors[scheme.main].shape))
        if shape != source.shape:
            raise ModelError(f"{source.name} has shape {list(shape)}, the config asks for {list(source.shape)}")
        read = import_module(f".quant.{scheme.layout}", __package__).read
        operand: Operand = read(parts, scheme, *shape)
        return operand


def _open(paths: list[Path], files: ExitStack) -> dict[str, Any]:
    where: dict[str, Any] = {}
    for path in paths:
        try:
            file = files.enter_context(safe_open(path, framework="pt"))
        except (SafetensorError, OSError) as why:
            raise ModelError(f"{path.name}: {why}") from why
        where.update(dict.fromkeys(file.keys(), file))
    return where


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
