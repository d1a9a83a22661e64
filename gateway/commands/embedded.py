"""Makes the embedded models before something starts that needs them."""

from __future__ import annotations

from rich.console import Console

from ..app import open_catalog
from ..config import Settings, embedded_tiers
from .progress import console_progress


def pull_if_needed(settings: Settings) -> None:
    """Make the embedded pair if a tier is to serve one of it and it is not there. Raises `ModelMissing`."""
    embedded = {spec.model for spec in embedded_tiers().values()}
    catalog = open_catalog(settings)
    needed = any(spec.kind == "local" and spec.model in embedded for spec in settings.tiers.values())
    if not needed or catalog.has_embedded():
        return
    console = Console(stderr=True)
    console.print("Making the embedded models; this is done once.")
    with console_progress(console) as progress:
        catalog.pull_embedded(progress)
