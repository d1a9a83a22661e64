"""Packed weights on disk: what `packing.pack_operands` made, as it lies in memory.

A file is a line of JSON (what it was made from, the matrices' kinds, checksums), zeros up to a multiple of 4096, and
the memory itself. It is read, not mapped: the pages of a mapped file are small, and two cores stream weights from them
at 22 instead of 35 GB/s, in every step, while reading 134 MB into huge pages costs some 0.1 s once.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch

from tiergate.kernels import Format, huge_bytes

from .convert.files import replacing
from .models.spec import ModelSpec
from .packing import Kind, Kinds, Layout, lay_out

_MAGIC = "tiergate packed weights"
_VERSION = 3
"""Of this file's form and of what packing does (packing.py, kernels/cpu/packing.h): raise it when either changes."""
_PAGE = 4096
_CHUNK = 4 << 20
"""Bytes under one checksum: few enough to be still in the processor's cache when they are summed."""
_HEADER_LIMIT = 16 << 20


class Damaged(Exception):
    """The file is not whole, or not one of these."""


def write(path: Path, origin: str, layout: Layout, room: torch.Tensor) -> None:
    """Put packed weights to `path`, whole or not at all. `origin` names what they were made from. Raises `OSError`."""
    memory = _memory(room)
    header = {
        "magic": _MAGIC,
        "version": _VERSION,
        "origin": origin,
        "kinds": {name: [kind.format.name, kind.group, kind.rotated] for name, kind in layout.kinds.items()},
        "bytes": layout.bytes,
        "checksums": [zlib.crc32(memory[start:stop]) for start, stop in _chunks(layout.bytes)],
    }
    line = json.dumps(header, separators=(",", ":")).encode() + b"\n"
    with replacing(path) as part, part.open("wb") as file:
        file.write(line + bytes(-len(line) % _PAGE))
        file.write(memory)


def read(path: Path, origin: str, spec: ModelSpec) -> tuple[Layout, torch.Tensor] | None:
    """What `write` put there, on huge pages; None where there is no file, or one made from something else.

    Raises `Damaged`, or `OSError`.
    """
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        return None
    with file:
        line = _line(file)
        header = _header(line)
        if header.get("origin") != origin or header.get("version") != _VERSION:
            return None
        try:
            layout = lay_out(spec, _kinds(header))
        except (KeyError, ValueError, TypeError, AttributeError) as why:
            raise Damaged(f"{path.name}: its matrices are not those of the model") from why
        if header.get("bytes") != layout.bytes:
            raise Damaged(f"{path.name}: another size than the model's")
        file.seek(-(-len(line) // _PAGE) * _PAGE)
        room = huge_bytes(layout.bytes)
        _fill(file, _memory(room), header.get("checksums"), path.name)
    return layout, room


def _memory(room: torch.Tensor) -> memoryview:
    return memoryview(room.numpy())  # type: ignore[arg-type]  # numpy's stubs do not say that arrays are buffers


def _line(file: IO[bytes]) -> bytes:
    line = b""
    while b"\n" not in line:
        more = file.read(1 << 16)
        if not more or len(line) > _HEADER_LIMIT:
            raise Damaged("no header")
        line += more
    return line[: line.index(b"\n") + 1]


def _header(line: bytes) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError as why:
        raise Damaged("its header is no JSON") from why
    if not isinstance(header, dict) or header.get("magic") != _MAGIC:
        raise Damaged("not a file of packed weights")
    return header


def _kinds(header: dict[str, Any]) -> Kinds:
    found = header["kinds"].items()
    return {str(name): Kind(Format[form], _group(group), rotated is True) for name, (form, group, rotated) in found}


def _group(value: Any) -> int:
    if type(value) is not int or value not in (0, 32, 64):
        raise ValueError(f"no group has {value} inputs")
    return value


def _fill(file: IO[bytes], memory: memoryview, sums: Any, name: str) -> None:
    chunks = list(_chunks(len(memory)))
    if not isinstance(sums, list) or len(sums) != len(chunks):
        raise Damaged(f"{name}: its checksums are missing")
    for (start, stop), wanted in zip(chunks, sums, strict=True):
        at = start
        while at < stop:
            got = file.readinto(memory[at:stop])  # type: ignore[attr-defined]
            if not got:
                raise Damaged(f"{name} is cut short")
            at += got
        if zlib.crc32(memory[start:stop]) != wanted:
            raise Damaged(f"{name}: bytes {start} to {stop} are not what was written")
    if file.read(1):
        raise Damaged(f"{name} is too long")


def _chunks(size: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _CHUNK, size)) for start in range(0, size, _CHUNK))
