"""What the tiers of one gateway share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .engine_host import EngineHost
from .folder import ModelFolder


class Models(Protocol):
    """Where model names become folders; the catalog is one."""

    def resolve(self, name_or_path: str, /) -> ModelFolder:
        """Raises `ModelMissing`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Handed to every backend's `open`."""

    models: Models
    engine: EngineHost
    clock: Callable[[], float]
    """Seconds, never going back."""
    load_wait: float
    """Seconds that a request waits for a tier that is loading, before it is turned away."""
