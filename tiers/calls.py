"""Reads a tool call as Hermes- and Qwen-style models write it: a JSON object between markers (pure)."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, NoReturn

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
"""What a tool may be called: OpenAI's rule, and the dots and length that MCP allows beside."""


class Written(NamedTuple):
    """A call as the model wrote it; `arguments` is its own JSON text."""

    name: str
    arguments: str


def parse_call(text: str) -> Written | None:
    """The call in `{"name": ..., "arguments": {...}}` (Llama says `parameters`), or None where it is not one."""
    try:
        members = _members(text)
    except ValueError:
        return None
    name, _ = members.get("name", (None, ""))
    arguments, written = members.get("arguments") or members.get("parameters") or ({}, "{}")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(arguments, dict):
        return None
    return Written(name, written)


def _members(text: str) -> dict[str, tuple[Any, str]]:
    """The members of the one JSON object that `text` is: each value, and how it was written. Raises ValueError."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    whole, end = _value(decoder, text, _skip(text, 0))
    if not isinstance(whole, dict) or _skip(text, end) != len(text):
        raise ValueError("not one JSON object")
    members: dict[str, tuple[Any, str]] = {}
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = _value(decoder, text, at)
        at = _skip(text, _skip(text, at) + len(":"))
        value, end = _value(decoder, text, at)
        members[key] = (value, text[at:end])
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return members


def _value(decoder: json.JSONDecoder, text: str, at: int) -> tuple[Any, int]:
    try:
        return decoder.raw_decode(text, at)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
