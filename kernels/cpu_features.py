"""What the processor can do, as the operating system reports it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

_KNOWN = (
    "avx2",
    "fma",
    "f16c",
    "bmi2",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
)


@dataclass(frozen=True, slots=True)
class CpuFeatures:
    """The instruction sets that kernels care about."""

    machine: str
    """Architecture, as `x86_64` or `aarch64`."""
    model: str
    """The processor's name, empty if unknown."""
    features: frozenset[str]
    """Linux' names of those present, of the ones kernels use."""


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> CpuFeatures:
    """Read them; on a system without `cpuinfo` the set is empty and only portable kernels are chosen."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return parse_cpuinfo(text)


def parse_cpuinfo(text: str) -> CpuFeatures:
    """The first processor's entry of Linux' `/proc/cpuinfo`."""
    entry: dict[str, str] = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        entry.setdefault(key.strip(), value.strip())
    flags = set((entry.get("flags") or entry.get("Features") or "").split())
    return CpuFeatures(platform.machine(), entry.get("model name", ""), frozenset(flags.intersection(_KNOWN)))
