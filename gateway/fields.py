"""Typed readers for the fields of a request: each takes one out of a JSON object or says exactly what is wrong with it.

A field that is absent or null reads as None. `at` is the path of the object that holds it, empty at the top, so that
every complaint names the field as `thinking.budget_tokens` or `messages[2].role`. All raise `BadRequest`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import BadRequest

KINDS = {
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    str: "a string",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


SHOWN = 80
"""Characters of a client's own text that a complaint repeats."""


def path(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def cut(text: str, most: int = SHOWN) -> str:
    """A client's text as a complaint may repeat it, with dots in place of what is left out."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def wrong_type(param: str, expected: str, value: Any) -> BadRequest:
    """Words follow OpenAI's own."""
    got = KINDS.get(type(value), "something else")
    text = f"Invalid type for '{param}': expected {expected}, but got {got} instead."
    return BadRequest(text, param=param, code="invalid_type")


def missing(param: str) -> BadRequest:
    return BadRequest(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def unsupported(param: str, why: str) -> BadRequest:
    """Known to the API but not to us: refused, because ignoring it would change what the client gets."""
    return BadRequest(f"Unsupported parameter: '{param}'. {why}", param=param, code="unsupported_parameter")


def integer(
    body: Mapping[str, Any], name: str, *, low: int | None = None, high: int | None = None, at: str = ""
) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise wrong_type(path(at, name), "an integer", value)
    _bounds(value, path(at, name), low, high, "integer")
    return value


def number(
    body: Mapping[str, Any],
    name: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    at: str = "",
) -> float | None:
    """`low` and `high` are allowed themselves, `above` is not. JSON integers are numbers, booleans are not."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not float and type(value) is not int:
        raise wrong_type(path(at, name), "a decimal", value)
    param = path(at, name)
    if type(value) is float and math.isnan(value):
        raise BadRequest(f"Invalid '{param}': not a number.", param=param)
    if above is not None and value <= above:
        text = f"Invalid '{param}': decimal below minimum value. Expected a value > {above}, but got {value} instead."
        raise BadRequest(text, param=param, code="decimal_below_min_value")
    _bounds(value, param, low, high, "decimal")
    return float(value)


def boolean(body: Mapping[str, Any], name: str, *, at: str = "") -> bool | None:
    value = body.get(name)
    if value is not None and type(value) is not bool:
        raise wrong_type(path(at, name), "a boolean", value)
    return value


def string(body: Mapping[str, Any], name: str, *, at: str = "") -> str | None:
    value = body.get(name)
    if value is not None and type(value) is not str:
        raise wrong_type(path(at, name), "a string", value)
    return value


def choice(body: Mapping[str, Any], name: str, allowed: Sequence[str], *, at: str = "") -> str | None:
    value = string(body, name, at=at)
    if value is not None and value not in allowed:
        raise bad_choice(path(at, name), allowed, value)
    return value


def bad_choice(param: str, allowed: Sequence[str], value: str) -> BadRequest:
    listed = ", ".join(f"'{one}'" for one in allowed)
    return BadRequest(
        f"Invalid value: '{cut(value, 60)}'. Supported values are: {listed}.", param=param, code="invalid_value"
    )


def array(body: Mapping[str, Any], name: str, *, longest: int, at: str = "") -> list[Any] | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not list:
        raise wrong_type(path(at, name), "an array", value)
    if len(value) > longest:
        param = path(at, name)
        text = f"Invalid '{param}': array too long. Expected at most {longest} items, but got {len(value)} instead."
        raise BadRequest(text, param=param, code="array_above_max_length")
    return value


def mapping(body: Mapping[str, Any], name: str, *, at: str = "") -> dict[str, Any] | None:
    value = body.get(name)
    if value is not None and type(value) is not dict:
        raise wrong_type(path(at, name), "an object", value)
    return value


def _bounds(value: float, param: str, low: float | None, high: float | None, kind: str) -> None:
    if low is not None and value < low:
        text = f"Invalid '{param}': {kind} below minimum value. Expected a value >= {low}, but got {value} instead."
        raise BadRequest(text, param=param, code=f"{kind}_below_min_value")
    if high is not None and value > high:
        text = f"Invalid '{param}': {kind} above maximum value. Expected a value <= {high}, but got {value} instead."
        raise BadRequest(text, param=param, code=f"{kind}_above_max_value")
