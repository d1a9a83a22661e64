"""Compiles the CPU core into one library on first use: `python -P -m tiergate.kernels.build [--sanitize]`.

Every object lies in a cache folder under a name made of all that it depends on: its source with the headers that it
includes, the options, the compiler and the processor's features. So a change recompiles what it touches, and a machine
that finds the cache of another one builds its own.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from .cpu_features import CpuFeatures, cpu_features
from .dispatch import Unavailable
from .toolchain import LEVELS, Compiler, Level, find_compiler, usable_levels

SOURCES = Path(__file__).resolve().parent / "cpu"
DEFAULT_FOLDER = "~/.cache/tiergate/native"
PER_LEVEL = ("linear", "attention", "rows", "sample", "moe")
"""Files that are compiled once per level, the others once."""
WITH_AMX = ("linear", "attention")
"""Those that have code of their own for AMX."""
COMPILES = 2
"""Compilers at a time: each takes some hundred MB."""
KEEP_SECONDS = 30 * 24 * 3600.0
"""Files of the cache that nobody used for so long are removed."""

_FLAGS = (
    "-std=c++17", "-fPIC", "-pthread", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden",
    "-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized",
)  # fmt: skip
"""The last two because GCC 12 warns of its own AVX-512 headers."""
_FAST = ("-O3",)
_SANITIZED = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unit:
    """One run of the compiler: a source and the options for it."""

    source: Path
    flags: tuple[str, ...]


def units(folder: Path, levels: Sequence[Level], flags: Sequence[str]) -> list[Unit]:
    """Every object that the library is made of."""
    have = tuple(f"-DTG_HAVE_{level.name.upper()}" for level in levels)
    found: list[Unit] = []
    for source in sorted(folder.glob("*.cpp")):
        if source.stem not in PER_LEVEL:
            found.append(Unit(source, (*flags, *have)))
            continue
        for level in levels:
            if level.name != "amx" or source.stem in WITH_AMX:
                found.append(Unit(source, (*flags, *level.flags, f"-DTG_LEVEL={LEVELS.index(level)}")))
    return found


def closure(source: Path) -> list[Path]:
    """A source and the headers of its folder that it includes, directly or not, each once."""
    found, todo = [source], [source]
    while todo:
        for name in _INCLUDE.findall(todo.pop().read_text(encoding="utf-8")):
            header = source.parent / name
            if header not in found and header.is_file():
                found.append(header)
                todo.append(header)
    return found


def key(unit: Unit, compiler: Compiler, cpu: CpuFeatures) -> str:
    """Names the object of a unit by all that it depends on."""
    digest = sha256(repr((unit.flags, compiler, cpu.machine, sorted(cpu.features))).encode())
    for path in closure(unit.source):
        content = path.read_bytes()
        digest.update(f"\n{path.name} {len(content)}\n".encode() + content)
    return f"{unit.source.stem}-{digest.hexdigest()[:24]}"


@contextmanager
def built_library(folder: Path | None = None, *, sanitize: bool = False, sources: Path = SOURCES) -> Iterator[Path]:
    """The library's file, compiled if the cache `folder` (default `DEFAULT_FOLDER`) does not have it.

    It may be gone when the block ends: where the folder cannot be used, a temporary one serves. Raises `Unavailable`
    where there is no compiler or the sources do not compile.
    """
    compiler = find_compiler()
    try:
        cache = _private(folder or Path(DEFAULT_FOLDER).expanduser())
    except (OSError, RuntimeError) as why:
        log.warning("the CPU kernels are compiled for this process alone: %s", why)
        with tempfile.TemporaryDirectory(prefix="tiergate-native-") as made:
            yield _build(sources, Path(made), compiler, sanitize)
    else:
        with _locked(cache):
            library = _build(sources, cache, compiler, sanitize)
        yield library


def _private(folder: Path) -> Path:
    """The folder, made if need be. What lies in it is run, so nobody else may be able to write there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.stat()
    if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"others can write to {folder}")
    with tempfile.TemporaryFile(dir=folder):
        return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(sources: Path, folder: Path, compiler: Compiler, sanitize: bool) -> Path:
    cpu = cpu_features()
    levels = usable_levels(compiler, cpu)
    flags = (*_FLAGS, *(_SANITIZED if sanitize else _FAST))
    wanted = {unit: folder / f"{key(unit, compiler, cpu)}.o" for unit in units(sources, levels, flags)}
    names = " ".join(path.name for path in wanted.values())
    library = folder / f"tiergate-{sha256(names.encode()).hexdigest()[:24]}.so"
    if not library.is_file():
        _compile({unit: path for unit, path in wanted.items() if not path.is_file()}, compiler)
        link = ("-shared", "-pthread", *(_SANITIZED if sanitize else ()))
        with _replacing(library) as part:
            compiler.run([*link, *map(str, wanted.values()), "-o", str(part)])
        _prune(folder, time.time() - KEEP_SECONDS)
    os.utime(library)
    return library


def _compile(wanted: dict[Unit, Path], compiler: Compiler) -> None:
    if not wanted:
        return
    log.info("compiling the CPU kernels, once for this processor: %d files", len(wanted))
    began = time.monotonic()
    with ThreadPoolExecutor(max_workers=min(COMPILES, len(os.sched_getaffinity(0)))) as pool:
        jobs = [pool.submit(_object, unit, path, compiler) for unit, path in wanted.items()]
        try:
            for job in jobs:
                job.result()
        except Unavailable:
            pool.shutdown(cancel_futures=True)
            raise
    log.info("compiled the CPU kernels in %.0f s", time.monotonic() - began)


def _object(unit: Unit, path: Path, compiler: Compiler) -> None:
    with _replacing(path) as part:
        compiler.run([*unit.flags, "-c", str(unit.source), "-o", str(part)])


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A name to write to; what lies there becomes `path` at once, or nothing does."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _prune(folder: Path, before: float) -> None:
    for path in folder.iterdir():
        if path.suffix in (".o", ".so", ".part") and path.stat().st_mtime < before:
            path.unlink(missing_ok=True)


def main() -> None:
    """Build it and say where it is."""
    parser = argparse.ArgumentParser(description="Compile the CPU core.")
    parser.add_argument("--sanitize", action="store_true", help="with the address and undefined-behaviour sanitizers")
    parser.add_argument("--out", type=Path, help="copy the library there")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with built_library(sanitize=options.sanitize) as library:
        print(shutil.copy(library, options.out) if options.out else library)


if __name__ == "__main__":
    main()
