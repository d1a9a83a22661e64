"""Says which implementation of each op is active."""

from __future__ import annotations

from dataclasses import dataclass

from .cpu_features import CpuFeatures, cpu_features
from .dispatch import Choice, Op


@dataclass(frozen=True, slots=True)
class BackendReport:
    """What serves a device, for logs and metrics."""

    device: str
    ops: dict[str, Choice]
    cpu: CpuFeatures

    def __str__(self) -> str:
        lines = [f"{self.cpu.model or self.cpu.machine}: {' '.join(sorted(self.cpu.features)) or 'no known features'}"]
        for name, choice in sorted(self.ops.items()):
            lines.append(f"{name}: {choice.backend}" + (f" ({choice.reason})" if choice.reason else ""))
        return "\n".join(lines)


def report(ops: tuple[Op[..., object], ...], device: str) -> BackendReport:
    """Ask each op which implementation serves `device` (`cpu` or `cuda`)."""
    return BackendReport(device, {op.name: op.choice(device) for op in ops}, cpu_features())
