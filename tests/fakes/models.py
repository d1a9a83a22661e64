"""The embedded pair for tests marked `models`, made on first use."""

from __future__ import annotations

import os
from pathlib import Path

from tiergate.gateway.config import ModelsSpec
from tiergate.tiers.catalog import Catalog


def embedded_catalog() -> Catalog:
    """A catalog that holds the embedded pair: in the folder `TIERGATE_MODELS__CACHE` names, else in the usual one."""
    named = os.environ.get("TIERGATE_MODELS__CACHE")
    catalog = Catalog(Path(named or ModelsSpec().cache).expanduser())
    if not catalog.has_embedded():
        catalog.pull_embedded()
    return catalog


def embedded_folder(name: str) -> Path:
    """The folder of `smollm2-135m` or `smollm2-135m-moe`."""
    return embedded_catalog().resolve(name).path
