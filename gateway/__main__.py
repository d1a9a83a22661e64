"""The command line: `tiergate serve`, `config`, `models`, `engine`, `info`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata

from tiergate.budget import BudgetError
from tiergate.tiers import TierError

from .commands import config, engine, info, models, serve
from .errors import GatewayError

COMMANDS = (serve, config, models, engine, info)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, or 2 with a sentence on standard error for a user's mistake."""
    parser = argparse.ArgumentParser(prog="tiergate", description="A tiered reasoning-router gateway.")
    parser.add_argument("--version", action="version", version=f"tiergate {metadata.version('tiergate')}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.register(subparsers)
    args = parser.parse_args(arguments)
    try:
        status: int = args.func(args)
    except (GatewayError, BudgetError, TierError) as error:
        print(f"tiergate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
