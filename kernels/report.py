"""Says which implementation of each op is active."""

from __future__ import annotations

from dataclasses import dataclass

from .cpu_features import CpuFeatures, cpu_features
from .dispatch import Choice, Op, Unavailable
from .native_decoder import kernel_levels


@dataclass(frozen=True, slots=True)
class BackendReport:
    """What serves a device, for logs and metrics."""

    device: str
    ops: dict[str, Choice]
    cpu: CpuFeatures
    native: str
    """Of the native core, which runs whole steps on a CPU: the level of each kernel, or why there is none."""

    def __str__(self) -> str:
        lines = [f"{self.cpu.model or self.cpu.machine}: {' '.join(sorted(self.cpu.features)) or 'no known features'}"]
        lines.append(f"native core: {self.native}")
        for name, choice in sorted(self.ops.items()):
            lines.append(f"{name}: {choice.backend}" + (f" ({choice.reason})" if choice.reason else ""))
        return "\n".join(lines)


def report(ops: tuple[Op[..., object], ...], device: str) -> BackendReport:
    """Ask each op which implementation serves `device` (`cpu` or `cuda`)."""
    return BackendReport(device, {op.name: op.choice(device) for op in ops}, cpu_features(), _native())


def _native() -> str:
    """Builds the core if it was not."""
    try:
        levels = kernel_levels()
    except Unavailable as why:
        return f"none ({why})"
    return ", ".join(f"{kernel} {level}" for kernel, level in levels.items())
