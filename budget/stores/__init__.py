"""Where the books lie: one file a URL scheme, exporting `open(place, folder) -> Store`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ..store import Store


class Open(Protocol):
    """Opens the store at `place`, the rest of a URL behind `scheme:`. Relative paths lie in `folder`, which exists.

    Raises `BadSetting` for a place that makes no sense, `StoreUnavailable` for one that cannot be opened.
    """

    def __call__(self, place: str, folder: Path) -> Store: ...
