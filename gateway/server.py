"""Runs the app on a socket, and stops it without breaking what runs: drain, cut, exit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Coroutine
from types import FrameType

import uvicorn

from .app import App
from .config import ServerSpec
from .errors import ConfigError, StartFailed
from .protocol import Protocol

POLL = 0.05
CUT_WAIT = 2.0
"""Seconds that cut streams get to write their error event."""
UNREAD_MS = 60_000
"""Milliseconds after which the kernel gives up on a client that takes nothing of what it was sent (Linux)."""

log = logging.getLogger("tiergate")


def listen(spec: ServerSpec) -> socket.socket:
    """A socket bound and listening where the settings say. Raises `ConfigError`."""
    family = socket.AF_INET6 if ":" in spec.host else socket.AF_INET
    try:
        bound = socket.create_server((spec.host, spec.port), family=family, backlog=2048, reuse_port=spec.reuse_port)
    except OSError as error:
        raise ConfigError(f"cannot listen on {spec.host} port {spec.port}: {error.strerror or error}") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Connections inherit it. One whose client never reads would otherwise stay, with its buffer, even when closed.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
    return bound


class Server(uvicorn.Server):
    """One process's server. The first SIGTERM or SIGINT drains, the second one ends at once.

    It opens and closes the application itself, so that what cannot be opened is raised to whoever runs it.
    """

    def __init__(self, app: App, spec: ServerSpec) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                # Nothing here asks for a client's address.
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=75,
                # Everything has been drained or cut by then.
                timeout_graceful_shutdown=int(CUT_WAIT),
            )
        )
        self._app = app
        self._spec = spec
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._failure = ""
        self._opened = contextlib.AsyncExitStack()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Raises what opening the application raises."""
        self._loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as opened:
            await opened.enter_async_context(self._app.open())
            await super().startup(sockets)
            self._opened = opened.pop_all()
        self._keep(self._announce())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Raises `StartFailed` when it ends because the engine will never start."""
        async with self._opened:
            await super().shutdown(sockets)
        if self._failure:
            raise StartFailed(self._failure)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """In place of uvicorn's, which stops listening at once and then raises the signal again."""
        if self._stopping or self._loop is None or not self.started:
            self.force_exit = self.should_exit = True
            return
        self._stopping = True
        log.info("%s: draining", signal.Signals(sig).name)
        self._loop.call_soon_threadsafe(lambda: self._keep(self.drain()))

    async def drain(self) -> None:
        """Take nothing new, wait for what runs as long as the settings allow, cut the rest, then stop serving."""
        service = self._app.service
        service.drain()
        if active := service.metrics.active:
            requests = "1 request" if active == 1 else f"{active} requests"
            log.info("waiting for %s, at most %g s; once more to stop now", requests, self._spec.drain)
        if not await self._idle(self._spec.drain):
            log.warning("%d requests are cut", service.metrics.active)
            service.cut()
            await self._idle(CUT_WAIT)
        self.should_exit = True

    async def _idle(self, seconds: float) -> bool:
        """Whether nothing runs any more within that time."""
        deadline = time.monotonic() + seconds
        while self._app.service.metrics.active:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL)
        return True

    async def _announce(self) -> None:
        began = time.monotonic()
        opened = self._app.service.tiers
        tiers = opened.tiers
        # Readiness is a state to be looked at, and nobody tells of its changes.
        while not all(tier.health().ready for tier in tiers.values()):
            if opened.failure:
                self._failure = opened.failure
                self.should_exit = True
                return
            await asyncio.sleep(4 * POLL)
        log.info("ready: %s (%.1f s)", ", ".join(tiers), time.monotonic() - began)

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
