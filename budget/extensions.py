"""Finds a policy or a store by the name of its file."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from .errors import BadSetting


def load(package: ModuleType, name: str, where: str) -> ModuleType:
    """Import the module `name` of `package`; the package's own files are the only names allowed.

    Raises `BadSetting` at the setting `where`, which lists the names there are.
    """
    known = sorted(found.name for found in pkgutil.iter_modules(package.__path__))
    if name not in known:
        raise BadSetting(where, f"{name!r} is none of {', '.join(known)}")
    return importlib.import_module(f"{package.__name__}.{name}")
