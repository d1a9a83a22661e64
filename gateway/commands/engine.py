"""`tiergate engine`: the engine alone, for gateways in other processes to join."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from dataclasses import replace

from ..app import open_models
from ..config import Settings
from ..errors import StartFailed
from ..logs import set_up_logs
from .config import Subparsers
from .embedded import pull_if_needed
from .options import add_settings, settings_of

POLL = 0.2

log = logging.getLogger("tiergate")


def register(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "engine",
        help="run the engine alone, for several gateways to share",
        description="Runs the engine of all local tiers until it is told to stop. Gateways of the same settings join "
        "it by --set engine.address=ENDPOINT. Whoever reaches the endpoint can use the models: there are no keys here.",
    )
    add_settings(parser)
    parser.add_argument(
        "--listen",
        metavar="ENDPOINT",
        required=True,
        help="ZeroMQ endpoint, as ipc:///run/tiergate or tcp://127.0.0.1:5555",
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    set_up_logs(settings.log)
    pull_if_needed(settings)
    return asyncio.run(_run(replace(settings, engine=replace(settings.engine, address="", listen=args.listen))))


async def _run(settings: Settings) -> int:
    stop = asyncio.Event()
    for sig in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(sig, stop.set)
    tiers = await open_models(settings)
    stopping = asyncio.create_task(stop.wait())
    try:
        shown = ""
        while not stopping.done():
            if tiers.failure:
                raise StartFailed(tiers.failure)
            away = [f"{name}: {tier.health().reason}" for name, tier in tiers.tiers.items() if not tier.health().ready]
            state = "; ".join(away) or f"ready on {settings.engine.listen}"
            if state != shown:
                shown = state
                log.info(state)
            await asyncio.wait((stopping,), timeout=POLL)
    finally:
        stopping.cancel()
        await tiers.close()
    return 0
