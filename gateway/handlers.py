"""The endpoints beside the chat: models, health, readiness, metrics and the page. None needs a model's time."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tiergate.budget import Tenant, UnknownKey

from . import route
from .auth import identify
from .errors import MissingKey, UnknownModel
from .service import Service

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Handlers:
    """Endpoints over one open service."""

    def __init__(self, service: Callable[[], Service], *, created: int) -> None:
        """`created` is the unix time that models report as their own."""
        self._service = service
        self._created = created
        self._page, self._policy = load_page()

    async def models(self, request: Request) -> Response:
        """Every name that the caller may ask for."""
        names = self._names(self._tenant(request))
        return _json(200, {"object": "list", "data": [self._model(name) for name in names]})

    async def model(self, request: Request) -> Response:
        name: str = request.path_params["id"]
        if name not in self._names(self._tenant(request)):
            raise UnknownModel(name)
        return _json(200, self._model(name))

    async def health(self, request: Request) -> Response:
        """The process is alive."""
        return _json(200, {"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """200 once every tier can answer, and no more once the server drains."""
        service = self._service()
        tiers = {name: tier.health() for name, tier in service.tiers.tiers.items()}
        ready = all(health.ready for health in tiers.values())
        status = "draining" if service.draining else "ready" if ready else "not ready"
        # Why a tier is away may name files and addresses: for those who belong here only.
        known = self._knows(request)
        shown = {
            name: {
                "ready": one.ready,
                "reason": one.reason if known else "",
                "running": one.running,
                "waiting": one.waiting,
            }
            for name, one in tiers.items()
        }
        return _json(200 if status == "ready" else 503, {"status": status, "tiers": shown})

    async def metrics(self, request: Request) -> Response:
        service = self._service()
        body = service.metrics.render(await service.lanes.latest())
        return Response(body, headers={"content-type": METRICS_TYPE})

    async def page(self, request: Request) -> Response:
        headers = {"content-security-policy": self._policy, "x-content-type-options": "nosniff"}
        return Response(self._page, media_type="text/html", headers=headers)

    def _tenant(self, request: Request) -> Tenant:
        return identify(self._service().keys, dict(request.scope["headers"]))

    def _knows(self, request: Request) -> bool:
        try:
            self._tenant(request)
        except (MissingKey, UnknownKey):
            return False
        return True

    def _names(self, tenant: Tenant) -> list[str]:
        views = self._service().views()
        names: dict[str, None] = {}
        if any(one.on_ladder and route.serves_auto(tenant, one) for one in views):
            names[route.AUTO] = None
        for one in views:
            if route.allowed(tenant, one.name, one.names):
                names |= dict.fromkeys((one.name, *sorted(one.names)))
        return list(names)

    def _model(self, name: str) -> Mapping[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "tiergate"}


def load_page() -> tuple[bytes, str]:
    """The chat page, and the policy under which a browser runs nothing but the page's own script and style."""
    page = Path(__file__).with_name("page.html").read_bytes()
    hashes = {
        tag: base64.b64encode(hashlib.sha256(body).digest()).decode()
        for tag, body in re.findall(rb"<(script|style)>(.*?)</\1>", page, re.DOTALL)
    }
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes[b'script']}'; style-src 'sha256-{hashes[b'style']}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


def _json(status: int, value: Any) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")
