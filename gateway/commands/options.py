"""The options by which every command learns the settings, and how settings are written out for people."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from tiergate.budget import TenantSpec
from tiergate.tiers import TierSpec

from ..config import PREFIX, Explained, Settings, explain_settings, load_settings
from ..settings_tree import leaves


def add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--config", metavar="FILE", help="TOML file of settings; else ./tiergate.toml if it exists"
    )
    parser.add_argument(
        "--set",
        dest="assignments",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one setting, as server.port=9000; may be given often and wins over file and environment",
    )


def settings_of(args: argparse.Namespace, flags: Sequence[str] = ()) -> Settings:
    """Raises `ConfigError`."""
    return load_settings(args.config, flags=(*args.assignments, *flags))


def explained(args: argparse.Namespace) -> list[Explained]:
    """Raises `ConfigError`."""
    return explain_settings(args.config, flags=args.assignments)


def variable(path: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + path.replace(".", "__").upper()


def shown(value: Any) -> str:
    """As TOML would have it, nearly: unset values are empty."""
    return "" if value is None else orjson.dumps(value).decode()


def reference() -> Iterator[str]:
    """Every setting there is with its default and meaning, as lines for a help text."""
    tables = Settings(tiers={"NAME": TierSpec()}, tenants={"ID": TenantSpec()})
    for one in leaves(tables):
        yield f"  {one.path} = {shown(one.value)}"
        if one.doc:
            yield f"      {one.doc}"
    yield ""
    yield "Tiers when none are configured:"
    for name, spec in Settings().tiers.items():
        thinks = ", thinks first" if spec.thinking.enabled else ""
        yield f"  {name}: model {spec.model}{thinks}"
