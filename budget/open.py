"""From a store's URL to the store."""

from __future__ import annotations

from pathlib import Path

from . import stores
from .errors import BadSetting
from .extensions import load
from .store import Store
from .stores import Open


def open_store(url: str, *, folder: Path) -> Store:
    """Open the store at `scheme:place`; relative places lie in `folder`. Blocks, so call it before serving.

    Raises `BadSetting` for a URL that makes no sense, `StoreUnavailable` for a store that cannot be opened.
    """
    scheme, colon, place = url.partition(":")
    if not colon:
        raise BadSetting("budget.store", f"{url!r} is no URL; begin it with a scheme, as sqlite: or memory:")
    open: Open = load(stores, scheme, "budget.store").open
    return open(place, folder)
