"""An open gateway over fake tiers, and clients for it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.asgi import opened
from fakes.tier import FakeTier, FakeTiers, say
from tiergate.budget import Balance, Ledger, TenantSpec, open_store
from tiergate.gateway.app import App, create_app
from tiergate.gateway.config import ServerSpec, Settings

CHAT = "/v1/chat/completions"


@dataclass(slots=True)
class House:
    """One gateway with everything a test may look at."""

    app: App
    settings: Settings
    tiers: FakeTiers
    ledger: Ledger

    @property
    def fast(self) -> FakeTier:
        return self.tiers.tiers["fast"]

    @property
    def deep(self) -> FakeTier:
        return self.tiers.tiers["deep"]

    async def balance(self, tenant: str = "local") -> Balance:
        who = next(one for one in self.app.service.keys.tenants if one.id == tenant)
        return await self.ledger.balance(who)

    @contextlib.asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(self.app)
        async with (
            opened(self.app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost", **options) as client,
        ):
            yield client


Build = Callable[..., House]


@pytest.fixture
def house(tmp_path: Path) -> Build:
    """Builds a gateway of a fast tier and a deep one that thinks; keywords are settings of the server or tenants."""

    def build(
        fast: FakeTier | None = None,
        deep: FakeTier | None = None,
        *,
        tenants: dict[str, TenantSpec] | None = None,
        lanes: dict[str, Any] | None = None,
        **server: Any,
    ) -> House:
        tiers = FakeTiers(
            fast or FakeTier("fast"),
            deep or FakeTier("deep", say("It is 4.", think="Two and two."), thinks=True),
            lanes=lanes,
        )
        settings = Settings(server=ServerSpec(port=0, **server), tenants=tenants or {}, data=str(tmp_path))
        ledger = Ledger(open_store("memory:", folder=tmp_path))
        return House(create_app(settings, tiers=tiers, ledger=ledger), settings, tiers, ledger)

    return build


def ask(text: str = "Hi", **fields: Any) -> dict[str, Any]:
    """The body of a chat request."""
    return {"model": "fast", "messages": [{"role": "user", "content": text}], **fields}
