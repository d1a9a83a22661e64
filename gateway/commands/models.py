"""`tiergate models`: what models there are, and how to get more."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console

from tiergate.tiers import Catalog, ModelFolder

from ..app import open_catalog
from .config import Subparsers
from .options import add_settings, settings_of
from .progress import console_progress

Command = Callable[[Catalog, argparse.Namespace], int]


def register(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Add `models` and its own subcommands. Exit status: 0, or 1 when `verify` finds damage."""
    parser = subparsers.add_parser("models", help="list, fetch, add, remove and verify models")
    commands = parser.add_subparsers(required=True, metavar="ACTION")

    def add(name: str, run: Command, text: str) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
        add_settings(command)
        command.set_defaults(func=lambda args: run(open_catalog(settings_of(args)), args))
        return command

    add("list", _list, "Show all models.")
    pull = add("pull", _pull, "Make the embedded pair of models, from one download of 93 MB.")
    pull.add_argument("what", choices=["embedded"])
    one = add("add", _add, "Register a local Hugging Face folder, or convert a GGUF file.")
    one.add_argument("path", metavar="PATH", type=Path)
    one.add_argument("--name", help="name to serve it under, instead of the folder's or file's")
    gone = add("remove", _remove, "Forget a model; folders that were registered stay where they are.")
    gone.add_argument("name", metavar="NAME")
    check = add("verify", _verify, "Read all files of a model, or of all models, and compare their checksums.")
    check.add_argument("name", metavar="NAME", nargs="?")


def _list(catalog: Catalog, args: argparse.Namespace) -> int:
    models = catalog.list()
    if models:
        _print_columns([("NAME", "SIZE", "THINKS", "LICENSE", "PATH"), *map(_row, models)])
    else:
        print("No models yet. `tiergate models pull embedded` makes the embedded pair.")
    return 0


def _row(model: ModelFolder) -> tuple[str, ...]:
    thinks = f"{model.thinking.budget} tokens" if model.thinking.enabled else "no"
    return model.name, f"{model.bytes / 1e6:.0f} MB", thinks, model.license or "unknown", str(model.path)


def _print_columns(rows: Iterable[tuple[str, ...]]) -> None:
    """Aligned, but never cut, so that other programs can read them too."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _pull(catalog: Catalog, args: argparse.Namespace) -> int:
    with console_progress(Console(stderr=True)) as progress:
        models = catalog.pull_embedded(progress)
    for model in models:
        print(f"{model.name}: {model.path}")
    return 0


def _add(catalog: Catalog, args: argparse.Namespace) -> int:
    with console_progress(Console(stderr=True)) as progress:
        model = catalog.add(args.path, args.name, progress)
    print(f"{model.name}: {model.path}")
    return 0


def _remove(catalog: Catalog, args: argparse.Namespace) -> int:
    catalog.remove(args.name)
    return 0


def _verify(catalog: Catalog, args: argparse.Namespace) -> int:
    damaged = 0
    for name in [args.name] if args.name else catalog.names():
        with console_progress(Console(stderr=True)) as progress:
            wrong = catalog.verify(name, progress)
        for sentence in wrong:
            print(f"{name}: {sentence}", file=sys.stderr)
        if not wrong:
            print(f"{name}: whole")
        damaged += bool(wrong)
    return 1 if damaged else 0
