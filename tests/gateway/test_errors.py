from __future__ import annotations

import inspect
import logging

import orjson
import pytest
from starlette.exceptions import HTTPException

from tiergate.budget import BudgetExceeded, NeverFits, StoreUnavailable, UnknownKey
from tiergate.budget import errors as budget_errors
from tiergate.gateway import errors
from tiergate.gateway.errors import (
    BadRequest,
    Draining,
    HeadTooLarge,
    MissingKey,
    RequestLate,
    UnknownModel,
    UnsupportedEncoding,
    describe,
    openai_error,
)
from tiergate.tiers import BadField, ContextTooLong, GenerationFailed, TierUnavailable, UpstreamRefused
from tiergate.tiers import errors as tier_errors

NOT_FOR_CLIENTS = {"ConfigError", "StartFailed", "BadSetting"}
"""Raised before anything is served."""


def test_every_error_of_every_room_has_its_row() -> None:
    for module in (errors, budget_errors, tier_errors):
        for name, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, Exception) and cls.__module__ == module.__name__ and name not in NOT_FOR_CLIENTS:
                assert cls in errors.TABLE, name


@pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    [
        (BadRequest("no", "n", "invalid_type"), 400, "invalid_type", "n"),
        (UnknownModel("x"), 404, "model_not_found", "model"),
        (MissingKey(), 401, "missing_api_key", None),
        (UnknownKey("no tenant owns this key"), 401, "invalid_api_key", None),
        (ContextTooLong(prompt_tokens=9, max_tokens=5, context=10), 400, "context_length_exceeded", "max_tokens"),
        (ContextTooLong(prompt_tokens=10, max_tokens=5, context=10), 400, "context_length_exceeded", "messages"),
        (ContextTooLong(prompt_tokens=9, max_tokens=None, context=9), 400, "context_length_exceeded", "messages"),
        (BadField("no", "logit_bias"), 400, "invalid_value", "logit_bias"),
        (NeverFits(scope="t", window="day", limit=1, asked=2), 400, "budget_never_fits", None),
        (StoreUnavailable("x"), 503, "store_unavailable", None),
        (TierUnavailable("fast", "loading", 2.5), 503, "model_unavailable", None),
        (UpstreamRefused("no", 401), 502, "upstream_refused", None),
        (GenerationFailed("x"), 500, "generation_failed", None),
        (HTTPException(404), 404, "unknown_url", None),
        (HTTPException(405, headers={"Allow": "GET"}), 405, "method_not_allowed", None),
        (RuntimeError("x"), 500, None, None),
        (HeadTooLarge(1, 2), 431, "headers_too_large", None),
        (RequestLate(3.0), 408, "request_timeout", None),
        (UnsupportedEncoding("charset", "x"), 415, "unsupported_encoding", None),
    ],
)
def test_what_clients_are_told(error: Exception, status: int, code: str | None, param: str | None) -> None:
    problem = describe(error)
    assert (problem.status, problem.code, problem.param) == (status, code, param)
    assert set(orjson.loads(openai_error(problem))["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("cls", [RuntimeError, GenerationFailed, StoreUnavailable, OSError, tier_errors.ModelMissing])
def test_what_broke_inside_stays_inside(cls: type[Exception]) -> None:
    assert "/etc/secret" not in openai_error(describe(cls("/etc/secret"))).decode()


def test_an_unknown_child_is_treated_like_its_parent() -> None:
    class Stranger(GenerationFailed):
        pass

    assert describe(Stranger("x")).code == "generation_failed"


def headers(error: Exception) -> dict[bytes, bytes]:
    return dict(describe(error).headers)


def exceeded(retry_after: float | None) -> BudgetExceeded:
    return BudgetExceeded(scope="tenant a", window="day", limit=10, used=8, asked=5, retry_after=retry_after)


def test_a_rate_names_its_limit_and_when_to_come_back() -> None:
    problem = describe(exceeded(1.2))
    assert (problem.status, problem.type, problem.code) == (429, "tokens", "rate_limit_exceeded")
    for fact in ("tenant a", "day", "10", "8", "5"):
        assert fact in problem.message
    assert headers(exceeded(1.2)) == {b"retry-after": b"2", b"x-should-retry": b"true"}


def test_a_long_wait_is_not_for_clients_to_sit_out() -> None:
    assert headers(exceeded(7200.0)) == {b"retry-after": b"7200", b"x-should-retry": b"false"}


def test_what_waiting_does_not_help_is_no_rate() -> None:
    problem = describe(exceeded(None))
    assert (problem.status, problem.type, problem.code) == (402, "insufficient_quota", "insufficient_quota")
    assert dict(problem.headers) == {b"x-should-retry": b"false"}


def test_coming_back_too_early_is_never_advised() -> None:
    assert headers(TierUnavailable("fast", "x", 0.01))[b"retry-after"] == b"1"
    assert headers(Draining(0.0))[b"connection"] == b"close"


def test_405_keeps_its_allow_header() -> None:
    assert headers(HTTPException(405, headers={"Allow": "GET"})) == {b"allow": b"GET"}


def test_only_the_unexpected_is_an_error_in_the_log() -> None:
    assert (describe(BadRequest("x")).level, describe(BadRequest("x")).trace) == (logging.INFO, False)
    assert (describe(KeyError("x")).level, describe(KeyError("x")).trace) == (logging.ERROR, True)
