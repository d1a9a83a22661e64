"""The ASGI application: routes, the error table over all of them, and the lifespan that opens and closes everything."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from tiergate.budget import BudgetError, Keyring, Ledger, open_store
from tiergate.tiers import Catalog, TierError, open_tiers

from .chat import ChatEndpoint
from .config import Settings
from .cors import Cors
from .errors import ConfigError, GatewayError, HostRefused, describe, openai_error
from .handlers import Handlers
from .hosts import Hosts
from .openai_dialect import OpenAIChat
from .record import new_id
from .service import Service, Tiers

CHAT = "/v1/chat/completions"

log = logging.getLogger(__name__)


class App:
    """Sends chat requests straight to their endpoint and all others through Starlette.

    What it serves is open between the lifespan's start and end; one process has one of these.
    """

    def __init__(self, settings: Settings, tiers: Tiers | None, ledger: Ledger | None) -> None:
        self._settings = settings
        self._tiers = tiers
        self._ledger = ledger
        self._service: Service | None = None
        self._chat = ChatEndpoint(lambda: self.service, OpenAIChat(most_choices=settings.server.max_choices))
        self._cors = Cors(settings.server.cors_origins)
        self._hosts = Hosts(settings.server.hosts)
        self._starlette = self._routes()

    @property
    def service(self) -> Service:
        """What is open. Only between the lifespan's start and end."""
        assert self._service is not None, "the application has not been started"
        return self._service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._starlette(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.service.keys.open and not self._hosts.allow(host := _header(scope, b"host")):
            problem = describe(HostRefused(host.decode("latin-1")))
            await JSONBody(openai_error(problem), problem.status)(scope, receive, _identified(send))
            return
        if self._settings.server.cors_origins:
            origin = _header(scope, b"origin")
            if scope["method"] == "OPTIONS" and (allowed := self._cors.preflight(origin)) is not None:
                await send({"type": "http.response.start", "status": 204, "headers": list(allowed)})
                await send({"type": "http.response.body"})
                return
            send = _adding(send, self._cors.answer(origin))
            scope.pop("extensions", None)  # or the short way out would miss these headers
        if scope["path"] == CHAT and scope["method"] == "POST":
            await self._chat(scope, receive, send)
        else:
            await self._starlette(scope, receive, _identified(send))

    def _routes(self) -> Starlette:
        handlers = Handlers(lambda: self.service, created=int(time.time()))
        app = Starlette(
            routes=[
                Route("/", handlers.page),
                Route(CHAT, self._chat, methods=["POST"]),
                Route("/v1/models", handlers.models),
                Route("/v1/models/{id:path}", handlers.model),
                Route("/health", handlers.health),
                Route("/ready", handlers.ready),
                Route("/metrics", handlers.metrics),
            ],
            exception_handlers={
                HTTPException: _refuse,
                GatewayError: _refuse,
                BudgetError: _refuse,
                TierError: _refuse,
                Exception: _refuse,
            },
            lifespan=lambda _: self.open(),
        )
        app.router.redirect_slashes = False
        return app

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open everything around the block, as the lifespan does: for a server that wants to know what went wrong.

        Raises `BadSetting`, `ConfigError`, `StoreUnavailable`, `ModelMissing`.
        """
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            ledger = self._ledger or open_ledger(settings)
            await stack.enter_async_context(ledger)
            tiers = self._tiers or await open_models(settings)
            stack.push_async_callback(tiers.close)
            service = Service(settings=settings, tiers=tiers, ledger=ledger, keys=Keyring(settings.tenants))
            self._service = service
            yield
            service.cut()


def create_app(settings: Settings, *, tiers: Tiers | None = None, ledger: Ledger | None = None) -> App:
    """The application. `tiers` and `ledger` are opened from the settings unless given; it closes them either way."""
    return App(settings, tiers, ledger)


def open_ledger(settings: Settings) -> Ledger:
    """The books that the settings name. Raises `BadSetting`, `ConfigError`, `StoreUnavailable`."""
    folder = Path(settings.data).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"data: cannot use the folder {folder}: {error.strerror or error}") from None
    return Ledger(open_store(settings.budget.store, folder=folder), lease=settings.budget.lease, sliced=True)


def open_catalog(settings: Settings) -> Catalog:
    """The models under the folder that the settings name."""
    return Catalog(Path(settings.models.cache).expanduser())


async def open_models(settings: Settings) -> Tiers:
    """The tiers that the settings name; their models load in the background. Raises `ModelMissing`."""
    return await open_tiers(settings.tiers, settings.engine, open_catalog(settings))


def _refuse(request: Request, error: Exception) -> Response:
    problem = describe(error)
    path = request.scope["path"][:200]
    log.log(problem.level, "%s %s: %s", request.method, path, problem.code or problem.status)
    headers = {name.decode(): value.decode() for name, value in problem.headers}
    return JSONBody(openai_error(problem), problem.status, headers)


class JSONBody(Response):
    """A response of bytes that are JSON already."""

    media_type = "application/json"


def _header(scope: Scope, wanted: bytes) -> bytes:
    """The value of a header, empty without it."""
    return next((value for name, value in scope["headers"] if name == wanted), b"")


def _identified(send: Send) -> Send:
    return _adding(send, ((b"x-request-id", new_id().encode()),))


def _adding(send: Send, headers: tuple[tuple[bytes, bytes], ...]) -> Send:
    """`send` with more headers on the response."""

    async def more(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return more
