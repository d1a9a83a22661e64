"""`tiergate models`: what models there are, and how to get more."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tiergate.tiers import Catalog, ModelMissing

from ..config import load_settings
from ..errors import ConfigError
from .progress import console_progress

Command = Callable[[Catalog, argparse.Namespace, Console], int]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `models` to the command line. Each subcommand sets `func`: parsed arguments to an exit code.

    0 is success, 1 a failure that is explained on standard error.
    """
    parser = subparsers.add_parser("models", help="list, fetch, add, remove and verify models")
    parser.add_argument("--cache", metavar="DIR", help="folder of the models, instead of the configured one")
    commands = parser.add_subparsers(dest="models_command", required=True)

    def add(name: str, run: Command, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(func=lambda args: _run(run, args))
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


def _run(run: Command, args: argparse.Namespace) -> int:

    console = Console()
    try:
        cache = args.cache or load_settings(getattr(args, "config", None)).models.cache
        return run(Catalog(Path(cache).expanduser()), args, console)
    except (ModelMissing, ConfigError) as error:
        print(f"tiergate: {error}", file=sys.stderr)
        return 1


def _list(catalog: Catalog, args: argparse.Namespace, console: Console) -> int:
    models = catalog.list()
    if not models:
        console.print("No models yet. `tiergate models pull embedded` makes the embedded pair.")
        return 0
    table = Table("name", "model", "size", "thinks", "license", "path", box=None, pad_edge=False)
    for model in models:
        size = f"{model.bytes / 1e6:.0f} MB"
        thinks = f"up to {model.thinking.budget} tokens" if model.thinking.enabled else "no"
        table.add_row(model.name, model.display_name, size, thinks, model.license or "unknown", str(model.path))
    console.print(table)
    return 0


def _pull(catalog: Catalog, args: argparse.Namespace, console: Console) -> int:
    with console_progress(console) as progress:
        models = catalog.pull_embedded(progress)
    for model in models:
        console.print(f"{model.name}: {model.path}", soft_wrap=True)
    return 0


def _add(catalog: Catalog, args: argparse.Namespace, console: Console) -> int:
    with console_progress(console) as progress:
        model = catalog.add(args.path, args.name, progress)
    console.print(f"{model.name}: {model.path}", soft_wrap=True)
    return 0


def _remove(catalog: Catalog, args: argparse.Namespace, console: Console) -> int:
    catalog.remove(args.name)
    return 0


def _verify(catalog: Catalog, args: argparse.Namespace, console: Console) -> int:
    names = [args.name] if args.name else [model.name for model in catalog.list()]
    bad = 0
    for name in names:
        with console_progress(console) as progress:
            wrong = catalog.verify(name, progress)
        for sentence in wrong:
            print(f"tiergate: {name}: {sentence}", file=sys.stderr)
        bad += bool(wrong)
        if not wrong:
            console.print(f"{name}: whole")
    return 1 if bad else 0
