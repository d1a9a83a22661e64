"""Every way a request can fail, and what the client is told: one table, exception class to HTTP, found by MRO.

Rooms below raise typed errors that carry facts and no HTTP. Messages of 4xx rows reach the client as they are; 5xx rows
have a fixed text, because what broke inside may name paths, hosts or other tenants.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import orjson
from starlette.exceptions import HTTPException

from tiergate.budget import BudgetError, BudgetExceeded, NeverFits, StoreUnavailable, UnknownKey
from tiergate.tiers import (
    BadField,
    BadPrompt,
    ContextTooLong,
    GenerationFailed,
    ModelMissing,
    TierError,
    TierUnavailable,
    UpstreamRefused,
)

LONGEST_WAIT = 120.0
"""Seconds: the official clients do not retry behind a longer `Retry-After`, so a longer one says not to."""


class GatewayError(Exception):
    """Base of this room."""


class ConfigError(GatewayError):
    """A setting is unknown, of the wrong type or out of range; the message names it and where it came from."""


class StartFailed(GatewayError):
    """The engine cannot start, however often it is tried; the message is its reason."""


class BadRequest(GatewayError):
    """The request cannot be understood; `param` names the field, `code` is one of OpenAI's."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class BodyTooLarge(GatewayError):
    """The body is longer than `limit` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The request body is larger than {limit} bytes.")
        self.limit = limit


class HeadTooLarge(GatewayError):
    """The request line and the header fields are more than `size` bytes or `count` fields."""

    def __init__(self, size: int, count: int) -> None:
        super().__init__(f"The request's line and headers are larger than {size} bytes, or more than {count} fields.")
        self.size = size
        self.count = count


class RequestLate(GatewayError):
    """The request did not come in; for `seconds` nothing of it has, or not its whole head."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The request was not complete after waiting for {seconds:g} seconds.")
        self.seconds = seconds


class UnsupportedEncoding(GatewayError):
    """The body is compressed, or not in UTF-8; `what` names the header."""

    def __init__(self, what: str, value: str) -> None:
        super().__init__(f"Unsupported {what}: {value[:80]!r}. Send JSON in UTF-8, not compressed.")


class MissingKey(GatewayError):
    """No key came with the request, and keys are needed here."""

    def __init__(self) -> None:
        super().__init__(
            "You didn't provide an API key. Send it in an Authorization header with Bearer auth "
            "(Authorization: Bearer YOUR_KEY), or as x-api-key."
        )


class HostRefused(GatewayError):
    """The request names a host that this machine may not be called by while it is open to everybody on it."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"This server may not be called {host[:100]!r} while it asks for no keys; see the setting server.hosts."
        )


class UnknownModel(GatewayError):
    """Nothing here answers to this model name."""

    def __init__(self, model: str) -> None:
        super().__init__(f"The model {model[:100]!r} does not exist or you do not have access to it.")
        self.param = "model"


class ModelRefused(GatewayError):
    """The tenant's policy does not allow this model."""

    def __init__(self, model: str) -> None:
        super().__init__(f"This key is not allowed to use the model {model[:100]!r}.")
        self.param = "model"


class Draining(GatewayError):
    """The server is going down and takes nothing new; `retry_after` in seconds."""

    def __init__(self, retry_after: float = 1.0) -> None:
        super().__init__("draining")
        self.retry_after = retry_after


class ShuttingDown(GatewayError):
    """The server went down while this request was still running."""


class ClientGone(GatewayError):
    """The client closed the connection before its answer was complete."""


class SlowReader(GatewayError):
    """The client does not read its stream, and the buffer kept for it is full."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `text` replaces the exception's own message where that may not leave the house."""

    status: int
    type: str
    code: str | None
    level: int = logging.INFO
    text: str | None = None
    trace: bool = False
    """Log the traceback: nobody expected this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a client is told about a failure, dialect apart."""

    status: int
    type: str
    code: str | None
    message: str
    param: str | None
    headers: tuple[tuple[bytes, bytes], ...]
    level: int
    trace: bool


INVALID = "invalid_request_error"
SERVER = "server_error"
BROKEN = "The server had an error while processing your request. Sorry about that!"
BUSY = "The model is not available right now. Please try again shortly."

TABLE: dict[type[BaseException], Row] = {
    Exception: Row(500, SERVER, None, logging.ERROR, BROKEN, trace=True),
    GatewayError: Row(500, SERVER, None, logging.ERROR, BROKEN, trace=True),
    BadRequest: Row(400, INVALID, "invalid_value"),
    BodyTooLarge: Row(413, INVALID, "request_too_large"),
    HeadTooLarge: Row(431, INVALID, "headers_too_large"),
    RequestLate: Row(408, INVALID, "request_timeout"),
    UnsupportedEncoding: Row(415, INVALID, "unsupported_encoding"),
    HostRefused: Row(403, INVALID, "host_not_allowed"),
    UnknownModel: Row(404, INVALID, "model_not_found"),
    ModelRefused: Row(403, "permission_error", "model_not_allowed"),
    Draining: Row(503, SERVER, "draining", text="The server is shutting down. Please try again."),
    ShuttingDown: Row(
        503, SERVER, "shutting_down", logging.WARNING, "The server was shut down before it had answered."
    ),
    ClientGone: Row(499, "client_error", "client_closed_request", text="The client closed the connection."),
    SlowReader: Row(499, "client_error", "slow_reader", logging.WARNING, "The client did not read its stream."),
    HTTPException: Row(500, INVALID, None),
    BudgetError: Row(500, SERVER, None, logging.ERROR, BROKEN, trace=True),
    MissingKey: Row(401, INVALID, "missing_api_key"),
    UnknownKey: Row(401, INVALID, "invalid_api_key", text="Incorrect API key provided."),
    BudgetExceeded: Row(429, "tokens", "rate_limit_exceeded"),
    NeverFits: Row(400, INVALID, "budget_never_fits"),
    StoreUnavailable: Row(503, SERVER, "store_unavailable", logging.ERROR, "The budget store did not answer."),
    TierError: Row(500, SERVER, None, logging.ERROR, BROKEN, trace=True),
    TierUnavailable: Row(503, SERVER, "model_unavailable", logging.WARNING, BUSY),
    ContextTooLong: Row(400, INVALID, "context_length_exceeded"),
    BadPrompt: Row(400, INVALID, "invalid_prompt"),
    BadField: Row(400, INVALID, "invalid_value"),
    GenerationFailed: Row(500, SERVER, "generation_failed", logging.ERROR, "The model failed while answering."),
    UpstreamRefused: Row(502, SERVER, "upstream_refused", logging.WARNING, "The model's provider refused the request."),
    ModelMissing: Row(500, SERVER, "model_missing", logging.ERROR, "The model's files are missing."),
}

HTTP_CODES = {404: "unknown_url", 405: "method_not_allowed"}


def describe(error: BaseException) -> Problem:
    """What the client is told about `error`, whatever it is."""
    row = next((TABLE[cls] for cls in type(error).__mro__ if cls in TABLE), TABLE[Exception])
    status, type_, code, text = row.status, row.type, row.code, row.text
    message = str(error) if text is None else text
    param: str | None = getattr(error, "param", None)
    headers: tuple[tuple[bytes, bytes], ...] = ()
    match error:
        case BadRequest():
            code = error.code
        case ContextTooLong():
            fits = error.max_tokens is not None and error.prompt_tokens < error.context
            param = "max_tokens" if fits else "messages"
        case UnknownKey() | MissingKey():
            headers = ((b"www-authenticate", b"Bearer"),)
        case BudgetExceeded(retry_after=None):
            # Waiting does not help: the clients' own retries would only hammer us.
            status, type_, code = 402, "insufficient_quota", "insufficient_quota"
            headers = ((b"x-should-retry", b"false"),)
        case BudgetExceeded() | TierUnavailable():
            headers = _retry(error.retry_after or 0.0)
        case Draining():
            headers = (*_retry(error.retry_after), (b"connection", b"close"))
        case ShuttingDown() | RequestLate():
            # More of the request may be on its way, and nobody reads it any more.
            headers = ((b"connection", b"close"),)
        case StoreUnavailable():
            headers = _retry(1.0)
        case HTTPException():
            status, code, message = error.status_code, HTTP_CODES.get(error.status_code), error.detail
            given = (error.headers or {}).items()
            headers = tuple((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in given)
    return Problem(
        status=status,
        type=type_,
        code=code,
        message=message,
        param=param,
        headers=headers,
        level=row.level,
        trace=row.trace,
    )


def openai_error(problem: Problem) -> bytes:
    """The JSON body of a failed request, which is also the payload of an error event within a stream."""
    return orjson.dumps(
        {
            "error": {
                "message": problem.message,
                "type": problem.type,
                "param": problem.param,
                "code": problem.code,
            }
        }
    )


def _retry(seconds: float) -> tuple[tuple[bytes, bytes], ...]:
    """Retry-After in whole seconds, rounded up: a client that waits that long succeeds."""
    whole = max(1, math.ceil(seconds))
    again = b"true" if whole <= LONGEST_WAIT else b"false"
    return ((b"retry-after", b"%d" % whole), (b"x-should-retry", again))
