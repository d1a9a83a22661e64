"""The CPU core as Python sees it: the library of `build.py`, loaded once a process."""

from __future__ import annotations

import ctypes
from functools import cache

from .build import built_library
from .dispatch import Unavailable

ABI_VERSION = 1


@cache
def library() -> ctypes.CDLL:
    """The compiled core; its functions release the GIL. Raises `Unavailable` where it cannot be built or loaded."""
    with built_library() as path:
        try:
            loaded = ctypes.CDLL(str(path))
        except OSError as why:
            raise Unavailable(f"the compiled kernels cannot be loaded: {why}") from why
    if (version := loaded.tg_abi_version()) != ABI_VERSION:
        raise Unavailable(f"the compiled kernels have interface version {version}, not {ABI_VERSION}")
    return loaded
