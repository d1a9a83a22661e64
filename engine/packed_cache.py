"""Packed weights, made at a model's first start in a precision and read from then on."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch

from tiergate.kernels import PackedModel

from . import packed_file
from .loader import read_operands, weight_files
from .models.spec import ModelSpec
from .packing import Layout, NativePrecision, assemble, pack_operands
from .private_folder import private_folder
from .quant.operands import Dense, Operand

DEFAULT_FOLDER = "~/.cache/tiergate/packed"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackedCache:
    """A folder of packed weights, one file for each model folder and precision."""

    folder: Path | None = None
    """None: under the user's cache folder."""
    least: int = 32 << 20
    """Smaller models, in bytes packed, are packed at every start: it takes no time."""

    def load(self, folder: Path, spec: ModelSpec, precision: NativePrecision) -> PackedModel:
        """The model in `folder`, packed: from the cache where that has it, else made and, if it can be, put there.

        A damaged file is made anew; a cache folder that others can write to is not used. Raises `ModelError` for a
        model folder that cannot be read.
        """
        origin = fingerprint(folder, precision)
        path = self._path(folder, precision)
        if found := _read(path, origin, spec):
            return assemble(spec, *found)
        layout, room = _make(folder, spec, precision)
        if layout.bytes >= self.least:
            _write(path, origin, layout, room)
        return assemble(spec, layout, room)

    def _path(self, folder: Path, precision: NativePrecision) -> Path:
        place = self.folder or Path(DEFAULT_FOLDER).expanduser()
        name = blake2b(str(folder.resolve()).encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
        return place / f"{folder.name[:40]}-{precision}-{name}.packed"


def fingerprint(folder: Path, precision: str) -> str:
    """Names the state of a model folder's weights in a precision: the config, and size and time of every file.

    Reads no weight.

    Raises `ModelError` when a file is missing.
    """
    state = blake2b((folder / "config.json").read_bytes(), digest_size=16)
    for path in weight_files(folder):
        facts = path.stat()
        state.update(f"\0{path.name}\0{facts.st_size}\0{facts.st_mtime_ns}".encode("utf-8", "surrogateescape"))
    return f"{precision}:{state.hexdigest()}"


def _read(path: Path, origin: str, spec: ModelSpec) -> tuple[Layout, torch.Tensor] | None:
    began = time.monotonic()
    if not path.exists():
        return None
    try:
        private_folder(path.parent)
        found = packed_file.read(path, origin, spec)
    except (OSError, packed_file.Damaged) as why:
        log.warning("packed weights are made anew: %s: %s", path, why)
        return None
    if found:
        log.info("read %d MB of packed weights in %.2f s", found[0].bytes // 10**6, time.monotonic() - began)
    return found


def _make(folder: Path, spec: ModelSpec, precision: NativePrecision) -> tuple[Layout, torch.Tensor]:
    began = time.monotonic()
    operands = served_operands(folder, spec, precision)
    layout, room = pack_operands(spec, operands, precision)
    log.info("packed the weights as %s in %.1f s", precision, time.monotonic() - began)
    return layout, room


def served_operands(folder: Path, spec: ModelSpec, precision: NativePrecision) -> dict[str, Operand]:
    """The operands as a lane of this precision is made of them.

    Norms and biases are those of bf16, as in a lane that PyTorch runs, so that both serve the same model.
    """
    read = read_operands(folder, spec, codes=precision == "int4")
    return {name: Dense(one.dense().bfloat16()) if len(one.shape) == 1 else one for name, one in read}


def _write(path: Path, origin: str, layout: Layout, room: torch.Tensor) -> None:
    try:
        private_folder(path.parent)
        packed_file.write(path, origin, layout, room)
    except OSError as why:
        log.warning("packed weights are not kept: %s", why)
