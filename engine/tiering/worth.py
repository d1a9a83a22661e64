"""Whether a block is worth keeping: the arithmetic of copying against computing. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

_FOLLOW = 0.2
"""Weight of the latest copy in a rate."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast blocks are copied from somewhere: an exponential average of what was measured."""

    bytes_per_second: float
    """Before the first copy, a guess."""
    latency: float = 0.0
    """Seconds before the first byte."""

    def seconds(self, size: int) -> float:
        """What a copy of so many bytes takes."""
        return self.latency + size / self.bytes_per_second

    def seen(self, size: int, seconds: float) -> Rate:
        """The rate after a copy of `size` bytes took so long."""
        measured = size / max(seconds - self.latency, 1e-9)
        return replace(self, bytes_per_second=self.bytes_per_second + _FOLLOW * (measured - self.bytes_per_second))


HOST = Rate(5e9)
DISK = Rate(5e8, 2e-4)


@dataclass(frozen=True, slots=True)
class Places:
    """Where a block may be kept."""

    host: bool
    disk: bool


def places(size: int, compute: float, host: Rate, disk: Rate) -> Places:
    """Where copying back a block of `size` bytes is predicted to be cheaper than the `compute` seconds of making it
    anew."""
    return Places(host=host.seconds(size) < compute, disk=disk.seconds(size) < compute)
