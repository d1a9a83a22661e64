"""Makes the mapped namespace (`tiergate.<room>` is the folder `<room>/`) and `fakes` importable from the sources."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("agents", "budget", "engine", "gateway", "kernels", "tiers")


def link_rooms() -> Path:
    """Link every room under `build/types/tiergate/` and return `build/types`, for sys.path and the type checkers."""
    base = ROOT / "build" / "types"
    home = base / "tiergate"
    home.mkdir(parents=True, exist_ok=True)
    for room in ROOMS:
        link, target = home / room, ROOT / room
        if target.is_dir() and not link.is_symlink():
            link.symlink_to(target)
    return base


sys.path[:0] = [str(link_rooms()), str(ROOT / "tests")]

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("tiergate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tiergate")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile the CPU core where collected tests may want it, before their time limits begin to count."""
    if session.items and not session.config.option.collectonly and "torch" in sys.modules:
        from tiergate.kernels.build import built_library
        from tiergate.kernels.dispatch import Unavailable

        with suppress(Unavailable), built_library():
            pass
