"""Safetensors files without a tensor library: the header by itself, and a writer that holds one tensor at a time.

The format: a little-endian u64 length, that many bytes of JSON mapping each name to its dtype, shape and byte range
in the data behind it, then the data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

from ..errors import ModelError
from .files import replacing

WIDTHS: Mapping[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""Bytes an element, by the format's own names."""

_HEADER_LIMIT = 100_000_000
"""The format's own bound on its header, bytes."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: `start` and `stop` are byte offsets into the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """A tensor that is going to be written."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * WIDTHS[self.dtype]


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of the file, by name.

    Raises `ModelError` when the file is missing, truncated or not of this format.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(size - 8, _HEADER_LIMIT):
                raise ModelError(f"{path} is truncated or not a safetensors file")
            raw = json.loads(file.read(length))
        tensors = {name: _info(entry, 8 + length) for name, entry in raw.items() if name != "__metadata__"}
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is not a safetensors file") from error
    for name, info in tensors.items():
        if info.stop > size or info.stop - info.start != info.elements * WIDTHS[info.dtype]:
            raise ModelError(f"{path} is truncated or damaged at tensor {name}")
    return tensors


def _info(entry: Mapping[str, object], base: int) -> TensorInfo:
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in WIDTHS or not isinstance(dtype, str) or not isinstance(shape, list):
        raise ValueError("unknown dtype or shape")
    start, stop = (int(offset) for offset in offsets)  # type: ignore[attr-defined]
    if start < 0:
        raise ValueError("a tensor lies before the data")
    return TensorInfo(dtype, tuple(int(n) for n in shape), base + start, base + stop)


class Writer:
    """Receives the tensors of one file, in the order of its layout."""

    def __init__(self, file: IO[bytes], layout: Mapping[str, TensorSlot]) -> None:
        self._file = file
        self._due = iter(layout.items())
        entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, slot in layout.items():
            start, end = end, end + slot.nbytes
            entries[name] = {"dtype": slot.dtype, "shape": list(slot.shape), "data_offsets": [start, end]}
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)  # the format wants the data aligned to 8 bytes
        file.write(len(header).to_bytes(8, "little") + header)

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Append the next tensor's elements, row-major and little-endian. Must follow the layout."""
        expected, slot = next(self._due)
        assert name == expected
        assert memoryview(data).nbytes == slot.nbytes
        self._file.write(data)

    def finish(self) -> None:
        assert next(self._due, None) is None, "a tensor of the layout was never written"


@contextmanager
def writing(path: Path, layout: Mapping[str, TensorSlot]) -> Iterator[Writer]:
    """Write a safetensors file of this layout; it appears at `path` when the block ends without an exception."""
    with replacing(path) as part, part.open("wb") as file:
        writer = Writer(file, layout)
        yield writer
        writer.finish()
