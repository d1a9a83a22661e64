"""The C++ compiler of this machine, and the levels of instruction sets that it and the processor both have."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from .cpu_features import CpuFeatures
from .dispatch import Unavailable

COMPILE_SECONDS = 600.0
"""Longest that one file may take on a busy machine."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level of abi.h: what the processor must have, and what the compiler must be told."""

    name: str
    features: frozenset[str]
    """Linux' names, all of them needed."""
    flags: tuple[str, ...]


_AVX2 = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx512bf16")
_AMX = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")
_AVX2_NEEDS = frozenset({"avx2", "fma", "f16c", "bmi2"})
_AVX512_NEEDS = _AVX2_NEEDS | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"}
LEVELS = (
    Level("scalar", frozenset(), ()),
    Level("avx2", _AVX2_NEEDS, _AVX2),
    Level("avx512", _AVX512_NEEDS, _AVX2 + _AVX512),
    Level("amx", _AVX512_NEEDS | {"amx_tile", "amx_bf16", "amx_int8"}, _AVX2 + _AVX512 + _AMX),
)
"""In the order of abi.h, each including those before it."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler that takes GCC's options."""

    path: str
    version: str
    """The first line of what it says of itself."""

    def run(self, arguments: Sequence[str]) -> None:
        """Raises `Unavailable` with its complaint if it fails."""
        try:
            done = subprocess.run(
                [self.path, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                timeout=COMPILE_SECONDS,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as why:
            raise Unavailable(f"the compiler could not be run: {why}") from why
        if done.returncode:
            raise Unavailable(f"{self.path} failed: {done.stderr.strip()[:2000]}")

    def accepts(self, flags: Sequence[str]) -> bool:
        """Whether it knows these options."""
        try:
            self.run([*flags, "-x", "c++", "-fsyntax-only", "/dev/null"])
        except Unavailable:
            return False
        return True


def find_compiler() -> Compiler:
    """The machine's g++, else its c++. Raises `Unavailable` where there is none."""
    for name in ("g++", "c++"):
        if (path := shutil.which(name)) is not None:
            try:
                said = subprocess.run(
                    [path, "--version"],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=True,
                )
            except (OSError, subprocess.SubprocessError):
                continue
            return Compiler(path, said.stdout.partition("\n")[0].strip())
    raise Unavailable("there is no C++ compiler (g++ or c++)")


def usable_levels(compiler: Compiler, cpu: CpuFeatures) -> tuple[Level, ...]:
    """The levels, from scalar on, up to the first that the processor or the compiler lacks."""
    found: list[Level] = []
    for level in LEVELS:
        if not level.features <= cpu.features or not compiler.accepts(level.flags):
            break
        found.append(level)
    return tuple(found)
