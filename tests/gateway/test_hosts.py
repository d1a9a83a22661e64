from __future__ import annotations

import httpx
import pytest

from tiergate.budget import TenantSpec
from tiergate.gateway.hosts import Hosts

from .conftest import CHAT, Build, ask


@pytest.mark.parametrize(
    "host",
    [
        b"", b"localhost", b"LOCALHOST:8080", b"chat.localhost:1", b"127.0.0.1", b"127.0.0.1:8080", b"10.0.0.7:80",
        b"[::1]", b"[::1]:8080", b"Desk.example:9", b"desk.example",
    ],
)  # fmt: skip
def test_allowed(host: bytes) -> None:
    assert Hosts(("desk.example",)).allow(host)


@pytest.mark.parametrize(
    "host", [b"evil.example", b"localhost.evil.example", b"127.0.0.1.evil.example:80", b"::1", b"notlocalhost", b":80"]
)
def test_refused(host: bytes) -> None:
    assert not Hosts(("desk.example",)).allow(host)


@pytest.mark.parametrize("path", ["/", "/v1/models", "/metrics", "/nothing"])
async def test_a_rebound_name_gets_nothing_from_an_open_gateway(house: Build, path: str) -> None:
    async with house().client(headers={"host": "evil.example"}) as client:
        response = await client.get(path)
        chat = await client.post(CHAT, json=ask())
    for one in (response, chat):
        assert (one.status_code, one.json()["error"]["code"]) == (403, "host_not_allowed")
        assert one.headers["x-request-id"]


async def test_with_keys_any_name_will_do(house: Build) -> None:
    home = house(tenants={"a": TenantSpec(keys=("k",))})
    async with home.client(headers={"host": "gateway.example", "x-api-key": "k"}) as client:
        response: httpx.Response = await client.post(CHAT, json=ask())
    assert response.status_code == 200
