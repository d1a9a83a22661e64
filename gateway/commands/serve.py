"""`tiergate serve`: the gateway, with its engine unless one is running elsewhere."""

from __future__ import annotations

import argparse
import gc
import logging

from tiergate.budget import Keyring

from ..app import create_app
from ..config import LOOPBACK, Settings
from ..errors import ConfigError
from ..logs import set_up_logs
from ..server import Server, listen
from .config import Subparsers
from .embedded import pull_if_needed
from .options import add_settings, reference, settings_of

log = logging.getLogger("tiergate")


def register(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve the API and the chat page",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(
            (
                "All settings, for --set, for a TOML file and, in capitals with two underscores for each dot, for the",
                "environment (TIERGATE_SERVER__PORT is server.port):",
                "",
                *reference(),
            )
        ).replace("%", "%%"),
    )
    add_settings(parser)
    parser.add_argument("--host", help="short for --set server.host=HOST")
    parser.add_argument("--port", type=int, help="short for --set server.port=PORT")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    flags = [f"server.{name}={getattr(args, name)}" for name in ("host", "port") if getattr(args, name) is not None]
    settings = settings_of(args, flags)
    set_up_logs(settings.log)
    Keyring(settings.tenants)
    refuse_public(settings)
    bound = listen(settings.server)
    with bound:
        pull_if_needed(settings)
        host, port = bound.getsockname()[:2]
        log.info("listening on http://%s:%d; GET /ready says when the models are loaded", host, port)
        server = Server(create_app(settings), settings.server)
        spare_the_collector()
        server.run(sockets=[bound])
    return 0 if server.started else 1


def spare_the_collector() -> None:
    """Leave what is loaded by now alone, and look for cycles less often: requests make next to none.

    Takes about a tenth off the cost of a request. This process's own business, so not the app's or the server's.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def refuse_public(settings: Settings) -> None:
    """Nobody but this machine may come in while anybody may. Raises `ConfigError`."""
    host = settings.server.host
    if host not in LOOPBACK and not settings.has_keys:
        raise ConfigError(
            f"server.host is {host}, which others can reach, but there are no keys. Give at least one tenant a key, "
            "for example with --set tenants.me.keys=SECRET, or listen on 127.0.0.1."
        )
