"""A GGUF file opened for reading: metadata as plain values, tensors as memory-mapped blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor, dequantize, quantize

from ..errors import ModelError


class _BoundedReader(GGUFReader):
    """The stock reader, made to stop at the end of the file: it would read on over a damaged length, without end."""

    def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        if int(offset) + int(count) * np.dtype(dtype).itemsize > self.data.nbytes:
            raise ValueError("the file ends early")
        return super()._get(offset, dtype, count, override_order)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor. `shape` is row-major, outermost first, as in PyTorch (GGUF itself lists it the other way round)."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    blocks: np.ndarray[Any, Any]
    """The stored values: a float array of `shape`, or uint8 [..., bytes a row] for the block formats."""

    def bf16(self) -> np.ndarray[Any, np.dtype[np.uint16]]:
        """The values rounded to the nearest bfloat16, ties to even, as bit patterns of `shape`.

        Raises `ModelError` for a block format that cannot be dequantised.
        """
        if self.type == GGMLQuantizationType.BF16:
            return np.ascontiguousarray(self.blocks).view(np.uint16).reshape(self.shape)
        try:
            values = dequantize(np.ascontiguousarray(self.blocks), self.type)
        except NotImplementedError as error:
            raise ModelError(f"tensor {self.name} is stored as {self.type.name}, which cannot be read") from error
        return to_bf16(values)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """`metadata` maps the file's own keys to str, int, float, bool or lists of these."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    def text(self, key: str) -> str:
        """The string behind `key`. Raises `ModelError` when it is absent or something else."""
        value = self.metadata.get(key)
        if not isinstance(value, str):
            raise ModelError(f"{self.path.name}: {key} is missing from its metadata")
        return value


def to_bf16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Round to the nearest bfloat16, ties to even; bit patterns of the same shape."""
    row = values.astype(np.float32, copy=False).reshape(1, -1)
    return quantize(row, GGMLQuantizationType.BF16).view(np.uint16).reshape(values.shape)


def open_gguf(path: Path) -> GgufFile:
    """Open and check a GGUF file; the tensors' data is mapped, not read.

    Raises `ModelError` when it is missing, truncated or damaged.
    """
    try:
        reader = _BoundedReader(path)
        metadata = {name: _value(field.contents()) for name, field in reader.fields.items()}
        tensors = {tensor.name: _tensor(tensor) for tensor in reader.tensors}
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        # The reader has no error type of its own: these are what damaged bytes make numpy and enums raise in it.
        raise ModelError(f"{path} is not a GGUF file, is truncated or is damaged: {error}") from error
    if reader.byte_order != "I":
        raise ModelError(f"{path} is of the other byte order than this machine")
    parts = metadata.get("split.count", 1)
    if parts != 1:
        raise ModelError(f"{path} is one of {parts} parts of a model; merge them first")
    return GgufFile(path, metadata, tensors)


def _value(contents: Any) -> Any:
    """Floats get the shortest decimal that names the same float32, so that 1e-5 is not 9.99999974e-06."""
    if isinstance(contents, float):
        return float(str(np.float32(contents)))
    return contents


def _tensor(tensor: ReaderTensor) -> GgufTensor:
    shape = tuple(int(n) for n in reversed(tensor.shape.tolist()))
    return GgufTensor(tensor.name, shape, tensor.tensor_type, tensor.data)
