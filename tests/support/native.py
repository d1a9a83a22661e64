"""The native CPU core for tests, which skip with a reason where it cannot be had."""

from __future__ import annotations

from functools import cache

import pytest

from tiergate.kernels import ThreadPool, Unavailable, kernel_levels
from tiergate.kernels.toolchain import LEVELS


def thread_pool(threads: int) -> ThreadPool:
    """Compute threads; one pool of each size serves all tests."""
    try:
        return _pool(threads)
    except Unavailable as why:
        pytest.skip(str(why))


def caps(level: str) -> list[int]:
    """Caps that hold every kernel at this level. Skips where the machine does not have it."""
    try:
        best = kernel_levels()["linear"]
    except Unavailable as why:
        pytest.skip(str(why))
    names = [known.name for known in LEVELS]
    if names.index(level) > names.index(best):
        pytest.skip(f"this machine has no {level}")
    return [names.index(level)] * 5


@cache
def _pool(threads: int) -> ThreadPool:
    return ThreadPool(threads)
