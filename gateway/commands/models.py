"""`tiergate models`: what models there are, and how to get more."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console

from tiergate.tiers import Catalog, ModelFolder, ModelMissing

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
    _add_no_check(pull)
    one = add("add", _add, "Register a local Hugging Face folder, or convert a GGUF file.")
    one.add_argument("path", metavar="PATH", type=Path)
    one.add_argument("--name", help="name to serve it under, instead of the folder's or file's")
    _add_no_check(one)
    gone = add("remove", _remove, "Forget a model; folders that were registered stay where they are.")
    gone.add_argument("name", metavar="NAME")
    whole = add("verify", _verify, "Read all files of a model, or of all models, and compare their checksums.")
    whole.add_argument("name", metavar="NAME", nargs="?")
    check = add("check", _check, "Measure each precision of a model, and let `auto` be the best of them.")
    check.add_argument("name", metavar="NAME")


def _add_no_check(command: argparse.ArgumentParser) -> None:
    command.add_argument("--no-check", action="store_true", help="do not measure precisions; `auto` is then bf16")


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
        _check_new(catalog, args, model.name)
    return 0


def _add(catalog: Catalog, args: argparse.Namespace) -> int:
    with console_progress(Console(stderr=True)) as progress:
        model = catalog.add(args.path, args.name, progress)
    print(f"{model.name}: {model.path}")
    _check_new(catalog, args, model.name)
    return 0


def _check_new(catalog: Catalog, args: argparse.Namespace, name: str) -> None:
    """A model that cannot be measured can still be served."""
    if args.no_check:
        return
    try:
        _print_check(catalog, name)
    except ModelMissing as why:
        print(f"{name}: its precisions were not measured: {why}", file=sys.stderr)


def _check(catalog: Catalog, args: argparse.Namespace) -> int:
    _print_check(catalog, args.name)
    return 0


def _print_check(catalog: Catalog, name: str) -> None:
    with console_progress(Console(stderr=True)) as progress:
        model, checks = catalog.check(name, progress)
    base = checks[0].perplexity
    rows = [("PRECISION", "PERPLEXITY", "TO BF16", "WEIGHTS OFF BY", "EXACT", "SIZE", "ONE TOKEN")]
    for one in checks:
        rows.append(
            (
                one.precision,
                f"{one.perplexity:.3f}",
                f"{one.perplexity / base - 1:+.2%}",
                f"{one.weight_error:.2%}",
                f"{one.exact_share:.0%} of them",
                f"{one.bytes / 1e6:.0f} MB",
                f"{one.step_seconds * 1e3:.1f} ms",
            )
        )
    _print_columns(rows)
    print(f"{model.name}: `auto` is {model.precision}")


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
