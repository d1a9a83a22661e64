"""Picks the implementation of an op by device: `gpu/<op>.py`, `cpu/<op>.py`, else the reference in `ops/<op>.py`.

Found by file name alone. An implementation module exports a function of the op's name and signature; where it cannot
run on this machine (no compiler, a missing CPU feature) its import raises `Unavailable` and the reference serves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, update_wrapper
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

_BACKENDS = {"cuda": "gpu", "cpu": "cpu"}


class Unavailable(ImportError):
    """An implementation cannot run on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which implementation of an op serves a device."""

    backend: str
    """`gpu`, `cpu` or `reference`."""
    reason: str = ""
    """Why a faster one that exists was passed over."""


class Op(Generic[P, R]):
    """A tensor operation. Calling it runs the implementation for the device of its first argument, a tensor."""

    def __init__(self, reference: Callable[P, R]) -> None:
        self.reference = reference
        self.name = reference.__name__
        # `<package>.ops.<op>`: the other implementations lie beside `ops`.
        self._package = reference.__module__.rsplit(".", 2)[0]
        update_wrapper(self, reference)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        found = _find(self._package, self.name, cast(torch.Tensor, args[0]).device.type)[0]
        return (self.reference if found is None else found)(*args, **kwargs)

    def on(self, device: str) -> Callable[P, R]:
        """The implementation that serves tensors of this device type (`cpu`, `cuda`)."""
        return _find(self._package, self.name, device)[0] or self.reference

    def choice(self, device: str) -> Choice:
        return _find(self._package, self.name, device)[1]


def op(reference: Callable[P, R]) -> Op[P, R]:
    """Make a reference body an op under its own name, which is also its file's."""
    return Op(reference)


@cache
def _find(package: str, name: str, device: str) -> tuple[Callable[..., Any] | None, Choice]:
    """The faster implementation, None for the reference. Cached: files do not change under a running process."""
    backend = _BACKENDS.get(device)
    if backend is None or not _exists(f"{package}.{backend}", name):
        return None, Choice("reference")
    try:
        module = import_module(f"{package}.{backend}.{name}")
    except Unavailable as why:
        return None, Choice("reference", str(why))
    return getattr(module, name), Choice(backend)


def _exists(package: str, module: str) -> bool:
    return find_spec(package) is not None and find_spec(f"{package}.{module}") is not None
