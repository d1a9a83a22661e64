"""`tiergate info`: what is installed and where things lie, for bug reports."""

from __future__ import annotations

import argparse
import os
import platform
from importlib import metadata
from pathlib import Path

from tiergate.tiers import describe_kernels

from ..app import open_catalog
from .config import Subparsers
from .options import add_settings, settings_of

PACKAGES = ("torch", "tokenizers", "pyzmq", "msgspec", "orjson", "starlette", "uvicorn", "uvloop", "httptools")


def register(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("info", help="show versions, folders, tiers and models")
    add_settings(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    catalog = open_catalog(settings)
    print(f"tiergate {metadata.version('tiergate')}, Python {platform.python_version()}, {platform.platform()}")
    print("packages: " + ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES))
    print(f"cores: {len(os.sched_getaffinity(0))}")
    print(f"data: {Path(settings.data).expanduser()}")
    print(f"models: {catalog.root}")
    for model in catalog.list():
        print(f"    {model.name}: {model.path}")
    for name, spec in settings.tiers.items():
        print(f"tier {name}: {spec.kind}, model {spec.model}, precision {spec.precision}")
    print(f"engine: {settings.engine.device}, {settings.engine.threads or 'as many as cores'} threads")
    print(describe_kernels("cpu" if settings.engine.device == "cpu" else "cuda"))
    return 0
