"""The gateway's endpoints, in-process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.asgi import opened, until
from fakes.tier import FakeTier, say
from tiergate.budget import StoreUnavailable, TenantSpec
from tiergate.engine.messages import LaneStats
from tiergate.gateway.app import create_app
from tiergate.gateway.config import Settings
from tiergate.tiers import Finish, GenerationFailed, Start, Text, TierSpec, TierUnavailable, Usage

from .conftest import CHAT, Build, ask
from .test_wire_openai import NUMERIC


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of a response, whose shape is checked."""
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"].startswith("req_")
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


async def test_auto_says_why(house: Build) -> None:
    home = house()
    async with home.client() as client:
        easy = await client.post(CHAT, json=ask("Hi", model="auto"))
        hard = await client.post(
            CHAT, json=ask("Prove it step by step, then explain why.", model="auto", thinking_budget=9)
        )
    assert easy.json()["model"] == "fake-fast"
    assert easy.headers["x-tiergate-route"].startswith("tier=fast; class=trivial; score=0.0")
    assert easy.headers["x-tiergate-tier"] == "fast"
    assert easy.headers["x-tiergate-thinking-budget"] == "0"
    assert hard.json()["model"] == "fake-deep"
    assert 'reason="much thinking asked for"' in hard.headers["x-tiergate-route"]
    assert hard.headers["x-tiergate-thinking-budget"] == "9"


async def test_the_budget_reaches_the_tier(house: Build) -> None:
    home = house(tenants={"a": TenantSpec(max_thinking=50, max_tokens=300, keys=("k",))})
    async with home.client(headers={"authorization": "Bearer k"}) as client:
        for fields, hard, cap in (
            ({"thinking_budget": 20}, 20, 300),
            ({"thinking_budget": 500}, 50, 300),
            ({"reasoning_effort": "low", "max_tokens": 200}, 50, 200),
            ({"reasoning_effort": "none"}, 0, 300),
            ({"thinking": {"type": "disabled"}}, 0, 300),
        ):
            response = await client.post(CHAT, json=ask(model="deep", **fields))
            limits = home.deep.limits[-1]
            assert (limits.hard, limits.max_tokens) == (hard, cap)
            assert response.headers["x-tiergate-thinking-budget"] == str(hard)
            assert home.deep.prepared[-1][1] is (hard > 0)
            assert home.deep.requests[-1].salt == "a"


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "gpt-9"}, 404, "model_not_found", "model"),
        ({"temperature": 3}, 400, "decimal_above_max_value", "temperature"),
        ({"thinkng_budget": 3}, 400, "unknown_parameter", "thinkng_budget"),
        ({"logit_bias": {"500": 1}}, 400, "invalid_value", "logit_bias"),
        ({"max_tokens": 1000}, 400, "context_length_exceeded", "max_tokens"),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, 400, "context_length_exceeded", "messages"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_bad_requests_cost_nothing(
    house: Build, fields: dict[str, Any], status: int, code: str, param: str, stream: bool
) -> None:
    home = house()
    async with home.client() as client:
        response = await client.post(CHAT, json=ask(stream=stream) | fields)
        balance = await home.balance()
    assert response.status_code == status
    error = error_of(response)
    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")
    assert balance.granted == 0
    assert home.fast.answers == []


LITERALS = [
    "-1",
    "0",
    "1e308",
    "-1e308",
    "NaN",
    "Infinity",
    '""',
    '"1"',
    "null",
    "[]",
    "{}",
    "true",
    "1e999",
    "9" * 400,
]


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize("field", [*NUMERIC, "logit_bias", "thinking", "stop", "logprobs", "stream_options"])
async def test_no_literal_in_any_field_does_harm(house: Build, field: str, stream: str) -> None:
    home = house()
    async with home.client() as client:
        for literal in LITERALS:
            body = '{"model":"fast","messages":[{"role":"user","content":"Hi"}],"stream":%s,"%s":%s}'
            response = await client.post(
                CHAT, content=body % (stream, field, literal), headers={"content-type": "application/json"}
            )
            if response.status_code != 200:
                assert response.status_code == 400
                assert (error_of(response)["param"] or "").startswith(field)
        served = await client.post(CHAT, json=ask())
        balance = await home.balance()
    assert served.status_code == 200
    assert balance.granted == balance.settled_grants == len(home.fast.answers)


async def test_context_errors_tell_both_numbers(house: Build) -> None:
    async with house().client() as client:
        message = error_of(await client.post(CHAT, json=ask(max_tokens=1000)))["message"]
    assert "1000 tokens" in message
    assert "1002" in message


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 400),
        (b"{", {}, 400),
        (b'{"model":"fast"', {}, 400),
        (b'{"temperature":NaN}', {}, 400),
        (b"[" * 50_000, {}, 400),
        (json.dumps(ask()).encode(), {"content-type": "text/plain"}, 400),
        (json.dumps(ask()).encode(), {"content-type": ""}, 400),
        (json.dumps(ask()).encode(), {"content-type": "application/json; charset=utf-16"}, 415),
        (json.dumps(ask()).encode(), {"content-encoding": "gzip"}, 415),
        (b'{"a":"' + b"x" * (5 << 20) + b'"}', {}, 413),
    ],
)
async def test_bodies_that_are_no_request(house: Build, body: bytes, headers: dict[str, str], status: int) -> None:
    async with house().client() as client:
        response = await client.post(CHAT, content=body, headers={"content-type": "application/json"} | headers)
    assert response.status_code == status
    error_of(response)


async def test_a_body_that_grows_too_large_on_the_way(house: Build) -> None:
    async def parts() -> Any:
        for _ in range(20):
            yield b" " * 100

    async with house(body_limit=1000).client() as client:
        response = await client.post(CHAT, content=parts(), headers={"content-type": "application/json"})
    assert response.status_code == 413


async def test_a_large_body_within_the_limit_is_read(house: Build) -> None:
    home = house(FakeTier("fast", context=10**6))
    async with home.client() as client:
        response = await client.post(CHAT, json=ask("word " * 50_000))
    assert response.status_code == 200
    assert home.fast.requests[0].messages[0].content == "word " * 50_000


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "unknown_url"),
        ("POST", "/v1/chat/completions/", 404, "unknown_url"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/gpt-9", 404, "model_not_found"),
    ],
)
async def test_framework_errors_have_the_same_shape(
    house: Build, method: str, path: str, status: int, code: str
) -> None:
    async with house().client() as client:
        response = await client.request(method, path)
    assert response.status_code == status
    assert error_of(response)["code"] == code


async def test_keys(house: Build) -> None:
    tenants = {"a": TenantSpec(keys=("k",))}
    async with house(tenants=tenants).client() as client:
        missing = await client.post(CHAT, content=b"not even JSON")
        wrong = await client.post(CHAT, json=ask(), headers={"x-api-key": "no"})
        right = await client.post(CHAT, json=ask(), headers={"x-api-key": "k"})
        listed = await client.get("/v1/models")
    assert (missing.status_code, error_of(missing)["code"]) == (401, "missing_api_key")
    assert (wrong.status_code, error_of(wrong)["code"]) == (401, "invalid_api_key")
    assert wrong.headers["www-authenticate"] == "Bearer"
    assert right.status_code == 200
    assert listed.status_code == 401


async def test_a_day_that_is_used_up(house: Build) -> None:
    home = house(tenants={"a": TenantSpec(keys=("k",), day_tokens=6)})
    async with home.client(headers={"x-api-key": "k"}) as client:
        never = await client.post(CHAT, json=ask())
        first = await client.post(CHAT, json=ask(max_tokens=4))
        second = await client.post(CHAT, json=ask(max_tokens=4))
    assert (never.status_code, error_of(never)["code"]) == (400, "budget_never_fits")
    assert first.status_code == 200
    assert (second.status_code, error_of(second)["code"]) == (429, "rate_limit_exceeded")
    assert int(second.headers["retry-after"]) >= 1
    assert second.headers["x-should-retry"] in ("true", "false")


async def test_a_tier_that_is_away(house: Build) -> None:
    home = house(FakeTier("fast", ready=False, reason="loading"))
    async with home.client() as client:
        named = await client.post(CHAT, json=ask())
        auto = await client.post(CHAT, json=ask(model="auto"))
    assert (named.status_code, error_of(named)["code"]) == (503, "model_unavailable")
    assert named.headers["retry-after"] == "2"
    assert auto.json()["model"] == "fake-deep"
    assert "fast not ready" in auto.headers["x-tiergate-route"]


async def test_a_ladder_begins_above_a_tier_that_cannot_take_the_request(house: Build) -> None:
    home = house(FakeTier("fast", context=20))
    text = "Add 2 + 2 and explain it. " + "word " * 30
    async with home.client() as client:
        response = await client.post(CHAT, json=ask(text, model="auto"))
    assert "tier=fast>deep" in response.headers["x-tiergate-route"]
    assert response.json()["model"] == "fake-deep"
    assert response.headers["x-tiergate-tier"] == "deep"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "status"),
    [(GenerationFailed("secret"), 500), (TierUnavailable("fast", "secret", 1.0), 503), (RuntimeError("secret"), 500)],
)
async def test_a_failure_before_the_first_piece_is_a_plain_error(
    house: Build, stream: bool, failure: Exception, status: int
) -> None:
    home = house(FakeTier("fast", lambda *_: [failure]))
    async with home.client() as client:
        response = await client.post(CHAT, json=ask(stream=stream))
        balance = await home.balance()
    assert response.status_code == status
    error_of(response)
    assert "secret" not in response.text
    assert (balance.open_grants, balance.settled_grants, balance.spent) == (0, 1, 2)


async def test_a_failure_after_the_first_piece_is_the_last_event(house: Build) -> None:
    home = house(FakeTier("fast", lambda *_: [Text("Hel"), GenerationFailed("secret")]))
    async with home.client() as client:
        response = await client.post(CHAT, json=ask(stream=True))
    assert response.status_code == 200
    *_, last, rest = response.text.split("\n\n")
    assert rest == ""
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "generation_failed"
    assert "[DONE]" not in response.text
    assert "secret" not in response.text


async def test_an_answer_that_the_engine_aborted_is_a_failure(house: Build) -> None:
    home = house(FakeTier("fast", say("Hi", reason="abort")))
    async with home.client() as client:
        response = await client.post(CHAT, json=ask())
    assert (response.status_code, error_of(response)["code"]) == (500, "generation_failed")


async def test_a_store_that_is_away(house: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    home = house()

    async def away(*_: Any) -> None:
        raise StoreUnavailable("redis://secret")

    monkeypatch.setattr(home.ledger, "reserve", away)
    async with home.client() as client:
        response = await client.post(CHAT, json=ask())
    assert (response.status_code, error_of(response)["code"]) == (503, "store_unavailable")
    assert "secret" not in response.text
    assert home.fast.answers == []


async def test_a_tier_may_be_changed_while_nothing_has_been_seen(house: Build) -> None:
    end = Finish(reason="stop", usage=Usage())
    home = house(FakeTier("fast", lambda *_: [Start("deep", "fake-deep"), Text("x"), end]))
    async with home.client() as client:
        whole = await client.post(CHAT, json=ask())
        stream = await client.post(CHAT, json=ask(stream=True))
    assert whole.json()["model"] == "fake-deep"
    assert whole.headers["x-tiergate-tier"] == stream.headers["x-tiergate-tier"] == "deep"


async def test_ready_only_when_every_tier_is(house: Build) -> None:
    home = house(FakeTier("fast", ready=False, reason="loading weights"))
    async with home.client() as client:
        loading = await client.get("/ready")
        home.fast.ready = True
        ready = await client.get("/ready")
        home.app.service.draining = True
        draining = await client.get("/ready")
        refused = await client.post(CHAT, json=ask())
        health = await client.get("/health")
    assert loading.status_code == 503
    assert loading.json()["tiers"]["fast"] == {"ready": False, "reason": "loading weights", "running": 0, "waiting": 0}
    assert loading.json()["tiers"]["deep"]["ready"] is True
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    assert (draining.status_code, draining.json()["status"]) == (503, "draining")
    assert (refused.status_code, error_of(refused)["code"]) == (503, "draining")
    assert refused.headers["retry-after"] == "1"
    assert health.status_code == 200


async def test_why_a_tier_is_away_is_not_for_strangers(house: Build) -> None:
    home = house(FakeTier("fast", ready=False, reason="no /etc/secret"), tenants={"a": TenantSpec(keys=("k",))})
    async with home.client() as client:
        stranger = await client.get("/ready")
        friend = await client.get("/ready", headers={"x-api-key": "k"})
    assert stranger.status_code == friend.status_code == 503
    assert "secret" not in stranger.text
    assert friend.json()["tiers"]["fast"]["reason"] == "no /etc/secret"


async def test_books_that_fail_behind_the_last_byte_do_not_spoil_the_answer(
    house: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = house()

    async def broken(*_: Any) -> bool:
        raise RuntimeError("books")

    monkeypatch.setattr(home.ledger, "settle", broken)
    async with home.client() as client:
        whole = await client.post(CHAT, json=ask())
        stream = await client.post(CHAT, json=ask(stream=True))
    assert whole.status_code == 200
    assert stream.text.endswith("data: [DONE]\n\n")


async def test_metrics(house: Build) -> None:
    lane = LaneStats(
        running=1, waiting=2, free=3, cached=4, active=5, blocks=12, steps=7, prompt_tokens=8, generated_tokens=9,
        cached_tokens=10, preemptions=11, busy_seconds=1.5, precision="int8", threads=2,
        kernels={"linear": "amx", "rows": "avx512"},
    )  # fmt: skip
    home = house(lanes={"fast": lane})
    async with home.client() as client:
        await client.post(CHAT, json=ask())
        await client.post(CHAT, json=ask(model="deep", stream=True))
        await client.post(CHAT, json=ask(temperature=9))
        text = (await client.get("/metrics")).text
    for line in (
        'tiergate_requests_total{status="200",stream="false",tier="fast"} 1.0',
        'tiergate_requests_total{status="200",stream="true",tier="deep"} 1.0',
        'tiergate_requests_total{status="400",stream="false",tier=""} 1.0',
        'tiergate_failures_total{code="decimal_above_max_value"} 1.0',
        'tiergate_routes_total{class="trivial",tier="deep"} 1.0',
        'tiergate_tokens_total{kind="completion",tier="deep"} 6.0',
        'tiergate_tokens_total{kind="reasoning",tier="deep"} 3.0',
        'tiergate_first_event_seconds_count{tier="fast"} 1.0',
        'tiergate_request_seconds_bucket{le="+Inf",tier="deep"} 1.0',
        "tiergate_active_requests 0.0",
        'tiergate_lane_free{lane="fast"} 3.0',
        'tiergate_lane_generated_tokens_total{lane="fast"} 9.0',
        'tiergate_lane_threads{lane="fast",precision="int8"} 2.0',
        'tiergate_lane_kernel{kernel="linear",lane="fast",level="amx"} 1.0',
        'tiergate_lane_kernel{kernel="rows",lane="fast",level="avx512"} 1.0',
    ):
        assert line in text


async def test_origins(house: Build) -> None:
    origin = {"origin": "https://chat.example"}
    preflight = origin | {"access-control-request-method": "POST"}
    async with house(cors_origins=("https://chat.example",)).client() as client:
        allowed = await client.options(CHAT, headers=preflight)
        answer = await client.post(CHAT, json=ask(), headers=origin)
        other = await client.options(CHAT, headers=preflight | {"origin": "https://evil.example"})
        stranger = await client.post(CHAT, json=ask(), headers={"origin": "https://evil.example"})
    assert allowed.status_code == 204
    assert allowed.headers["access-control-allow-origin"] == "https://chat.example"
    assert "content-type" in allowed.headers["access-control-allow-headers"]
    assert answer.headers["access-control-allow-origin"] == "https://chat.example"
    assert "x-tiergate-route" in answer.headers["access-control-expose-headers"]
    for response in (other, stranger):
        assert "access-control-allow-origin" not in response.headers
        assert response.headers["vary"] == "origin"
    assert other.status_code == 405
    async with house().client() as client:
        closed = await client.post(CHAT, json=ask(), headers=origin)
        assert "access-control-allow-origin" not in closed.headers
        assert (await client.options(CHAT, headers=preflight)).status_code == 405


async def test_the_page_runs_nothing_but_its_own(house: Build) -> None:
    async with house().client() as client:
        page = await client.get("/")
    policy = page.headers["content-security-policy"]
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "unsafe" not in policy
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert "innerHTML" not in page.text


async def test_log_lines_hold_facts_and_no_text(house: Build, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with house().client() as client:
        response = await client.post(CHAT, json=ask("my secret question", model="deep", stream=True))
        await client.post(CHAT, json=ask("my secret question", n=0))
    good, bad = (record.facts for record in caplog.records if record.name == "tiergate.request")  # type: ignore[attr-defined]
    assert good["id"] == response.headers["x-request-id"]
    assert (good["status"], good["tenant"], good["asked"], good["tier"], good["model"]) == (
        200, "local", "deep", "deep", "fake-deep",
    )  # fmt: skip
    assert (good["completion_tokens"], good["reasoning_tokens"], good["events"]) == (6, 3, 8)
    assert good["first_ms"] <= good["total_ms"]
    assert (bad["status"], bad["error"], bad["tier"]) == (400, "integer_below_min_value", "")
    assert "secret" not in caplog.text
    assert "Two" not in caplog.text


async def test_a_path_in_a_log_line_is_a_short_one(house: Build, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with house().client() as client:
        await client.get("/" + "a" * 5000)
    (line,) = (record.getMessage() for record in caplog.records if record.name == "tiergate.gateway.app")
    assert line == f"GET /{'a' * 199}: unknown_url"


async def test_an_unexpected_error_is_logged_with_its_traceback(house: Build, caplog: pytest.LogCaptureFixture) -> None:
    home = house(FakeTier("fast", lambda *_: [RuntimeError("boom")]))
    async with home.client() as client:
        await client.post(CHAT, json=ask())
    (record,) = (record for record in caplog.records if record.name == "tiergate.request")
    assert record.levelname == "ERROR"
    assert record.exc_info is not None
    assert "boom" in str(record.exc_info[1])


async def test_cancelled_before_it_answers_is_told_so_in_the_usual_shape(house: Build) -> None:
    home = house(FakeTier("fast", lambda *_: [Text("a"), asyncio.Event()]))
    sent: list[Any] = []
    raw = json.dumps(ask()).encode()
    scope = {
        "type": "http", "method": "POST", "path": CHAT, "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        if home.app.service.metrics.active:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": raw}

    async def send(message: Any) -> None:
        sent.append(message)

    async with opened(home.app):
        running = asyncio.create_task(home.app(scope, receive, send))
        await until(lambda: home.fast.running)
        running.cancel()
        await asyncio.wait((running,))
        assert running.cancelled()
        assert not home.app.service.metrics.active
    start, body = sent
    assert start["status"] == 503
    assert dict(start["headers"])[b"connection"] == b"close"
    assert json.loads(body["body"])["error"]["code"] == "shutting_down"


async def test_cancelled_by_the_server_itself_is_settled(house: Build) -> None:
    home = house(FakeTier("fast", lambda *_: [Text("a"), asyncio.Event()]))
    async with home.client() as client:
        running = asyncio.create_task(client.post(CHAT, json=ask()))
        await until(lambda: home.fast.running)
        running.cancel()
        await asyncio.wait((running,))
        balance = await home.balance()
    assert home.fast.running == 0
    assert (balance.open_grants, balance.settled_grants, balance.spent) == (0, 1, 3)


async def test_the_end_of_the_app_closes_everything(house: Build) -> None:
    home = house()
    async with opened(home.app):
        assert not home.tiers.closed
    assert home.tiers.closed


async def test_an_app_opens_what_it_is_not_given(tmp_path: Path) -> None:
    remote = {"fast": TierSpec(kind="nothing-of-this-kind", model="x")}
    app = create_app(Settings(tiers=remote, data=str(tmp_path / "data")))
    with pytest.raises(AssertionError, match="nothing-of-this-kind"):
        async with opened(app):
            pass
    assert (tmp_path / "data").is_dir()
