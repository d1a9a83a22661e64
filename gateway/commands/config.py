"""`tiergate config`: every setting, where it comes from and what it means."""

from __future__ import annotations

import argparse

from tiergate.budget import Keyring

from .options import add_settings, explained, settings_of, shown, variable

Subparsers = argparse._SubParsersAction  # the type that argparse gives no public name


def register(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("config", help="show every setting with its value, default, source and meaning")
    add_settings(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Raises `ConfigError`, and `BadSetting` for keys that `serve` would not take."""
    Keyring(settings_of(args).tenants)
    for one in explained(args):
        print(f"{one.path} = {shown(one.value)}")
        if one.doc:
            print(f"    {one.doc}")
        print(f"    default: {shown(one.default) or 'not set'}; from: {one.source}; variable: {variable(one.path)}")
    return 0
