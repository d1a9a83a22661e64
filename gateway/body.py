"""Bytes of a request body to a JSON object, strictly.

Stricter than the parsers: a key given twice is refused instead of silently losing one of its values, and NaN and
Infinity, which are not JSON, are named by the field that holds them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from .errors import BadRequest, UnsupportedEncoding
from .fields import cut

INLINE_BYTES: Final = 64 * 1024
"""Bodies up to this size take microseconds to check; larger ones belong in a worker thread."""

DEEPEST: Final = 128
"""Levels of nesting; whoever writes the value down again, into a template for example, recurses that deep."""


def check_content_type(value: bytes | None) -> None:
    """Only JSON, and said so: a page of another origin can send any other type without asking the browser first.

    Raises `BadRequest`, `UnsupportedEncoding`.
    """
    kind, _, rest = (value or b"").partition(b";")
    if value is None or kind.strip().lower() != b"application/json":
        shown = "none" if value is None else repr(value[:80].decode("latin-1"))
        raise BadRequest(
            f"Unsupported content type: expected 'application/json', got {shown}.", code="unsupported_content_type"
        )
    for parameter in rest.split(b";") if rest else ():
        name, _, given = parameter.partition(b"=")
        if name.strip().lower() == b"charset" and given.strip(b' \t"').lower() not in (b"utf-8", b"utf8"):
            raise UnsupportedEncoding("charset", given.decode("latin-1"))


def check_encoding(value: bytes | None) -> None:
    """Content-Encoding: only bodies that are what they are. Raises `UnsupportedEncoding`."""
    if value is not None and value.strip().lower() not in (b"", b"identity"):
        raise UnsupportedEncoding("content encoding", value.decode("latin-1"))


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`, UTF-8.

    Raises `BadRequest` for anything else: malformed or empty text, duplicate keys, more than `DEEPEST` levels, lone
    surrogates, NaN, infinities, or a value that is no object.
    """
    if not raw:
        raise BadRequest("The request body is empty; a JSON object is needed.", code="empty_body")
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _explain(raw, error) from None
    if type(value) is not dict:
        raise BadRequest("The request body must be a JSON object.", code="invalid_type")
    if raw.count(b"{") + raw.count(b"[") > DEEPEST:
        _check_depth(value)
    if raw.count(b":") > 1:
        UNIQUE.decode(raw.decode())
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for one in level if isinstance(one, dict | list) for inner in _inside(one)]
        if not level:
            return
    raise BadRequest(f"The request body has more than {DEEPEST} levels.", code="invalid_json")


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _nothing(text: str) -> None:
    return None


def _refuse_twice(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            shown = cut(key)
            raise BadRequest(f"The key {shown!r} occurs twice in one JSON object.", param=shown, code="duplicate_key")
        seen.add(key)


UNIQUE: Final = json.JSONDecoder(object_pairs_hook=_refuse_twice, parse_int=_nothing, parse_float=_nothing)
"""Reads JSON only to find a key that one object holds twice. Making one costs more than most bodies do."""


class _NotFinite:
    """Stands for a NaN, an infinity, or a number beyond all floats."""


def _explain(raw: bytes, error: orjson.JSONDecodeError) -> BadRequest:
    """Say what is wrong with text that is not JSON; when it is a number that is not finite, say where."""
    plain = BadRequest(f"The request body is not valid JSON: {error.msg}", code="invalid_json")
    if len(raw) > INLINE_BYTES:
        return plain
    try:
        value = json.loads(raw, parse_constant=lambda _: _NotFinite, parse_float=_finite, parse_int=_finite)
    except (ValueError, RecursionError):
        return plain
    where = _find(value)
    if where is None:
        return plain
    shown = cut(where)
    return BadRequest(f"Invalid value for '{shown}': the number is not finite.", param=shown)


def _finite(text: str) -> Any:
    value = float(text)
    return value if math.isfinite(value) else _NotFinite


def _find(value: Any) -> str | None:
    """Where the first number stands that is not finite; None without one.

    By hand and not by recursion, because text that is no JSON may be nested deeper than Python's own calls may be; and
    a path is only spelt once it is wanted, because a long one for every value would take the square of the body's size.
    """
    steps: list[str | int] = []
    levels = [_inner(value)]
    while levels:
        found = next(levels[-1], None)
        if found is None:
            levels.pop()
            if steps:
                steps.pop()
            continue
        step, inner = found
        if inner is _NotFinite:
            return _spelt([*steps, step])
        if isinstance(inner, dict | list):
            steps.append(step)
            levels.append(_inner(inner))
    return "body" if value is _NotFinite else None


def _inner(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return iter(value.items())
    return enumerate(value) if isinstance(value, list) else iter(())


def _spelt(steps: Sequence[str | int]) -> str:
    """As `messages[1].content`."""
    names = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return names.removeprefix(".")
