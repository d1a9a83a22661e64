"""Finds fields that look as if they limited thinking, but are misspelt or in the wrong place.

Such a field must never be ignored silently: somebody would pay for it. Pure, and bounded in its work whatever a client
sends.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from . import fields
from .errors import BadRequest

FIELDS: Final = ("reasoning_effort", "thinking", "thinking_budget", "thinking_mode")
MOST_FIELDS: Final = 128
"""Of the request itself."""
MOST_UNKNOWN: Final = 256
"""Different names that are compared with the right ones, which takes some 30 microseconds each."""
MOST_ITEMS: Final = 2048
"""Looked at in a list; longer ones are refused by whoever reads them."""
SUSPECT: Final = re.compile("think|budget|effort|reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The fields of a dialect's object, and the shapes of those fields that hold an object or a list of objects."""

    known: frozenset[str]
    inside: Mapping[str, Shape] = field(default_factory=dict)
    answers: str = ""
    """The `role` of objects that repeat what a model said: their further fields may speak of its reasoning."""


def refuse_lookalikes(body: Mapping[str, Any], shape: Shape) -> None:
    """Refuse unknown fields of the request, of the objects in its shape, or one level below an unknown field of the
    request itself, when they look as if they limited thinking. Raises `BadRequest`, with the likeliest right name.
    """
    if len(body) > MOST_FIELDS:
        raise BadRequest(f"The request has more than {MOST_FIELDS} fields.", code="too_many_fields")
    _Search().enter(body, shape, "")


class _Search:
    def __init__(self) -> None:
        self._cleared: set[tuple[str, bool]] = set()

    def enter(self, value: Mapping[str, Any], shape: Shape, at: str) -> None:
        if not value.keys() <= shape.known:
            self._look(value, shape, at)
        for name, inner in shape.inside.items():
            held = value.get(name)
            if type(held) is dict:
                self.enter(held, inner, fields.path(at, name))
            elif type(held) is list:
                for place, item in enumerate(islice(held, MOST_ITEMS)):
                    if type(item) is dict:
                        self.enter(item, inner, f"{fields.path(at, name)}[{place}]")

    def _look(self, value: Mapping[str, Any], shape: Shape, at: str) -> None:
        answer = bool(shape.answers) and value.get("role") == shape.answers
        for name, inner in value.items():
            if name in shape.known or inner is None:
                continue
            self._judge(name, at, answer)
            if not at and type(inner) is dict:
                for below in inner:
                    self._judge(below, name, False)

    def _judge(self, name: str, at: str, answer: bool) -> None:
        if (name, answer) in self._cleared:
            return
        meant = name if name in FIELDS else _meant(name, answer)
        if meant is not None:
            raise unknown(fields.path(at, name), meant)
        if len(self._cleared) >= MOST_UNKNOWN:
            raise BadRequest(f"The request has more than {MOST_UNKNOWN} unknown fields.", code="too_many_fields")
        self._cleared.add((name, answer))


def unknown(param: str, meant: str) -> BadRequest:
    """The complaint about a field of this path that should have been `meant`."""
    shown = fields.cut(param)
    return BadRequest(f"Unknown parameter: '{shown}'. Did you mean '{meant}'?", param=shown, code="unknown_parameter")


def _meant(name: str, answer: bool) -> str | None:
    """The field that `name` was probably meant to be; None when it has nothing to do with limiting thought."""
    plain = re.sub("[^a-z]", "_", name[:64].lower())
    close = difflib.get_close_matches(plain, FIELDS, n=1, cutoff=0.8)
    if close:
        return close[0]
    if not SUSPECT.search(plain):
        return None
    if "budget" in plain or ("token" in plain and not answer):
        return "thinking_budget"
    if "effort" in plain:
        return "reasoning_effort"
    if answer:
        return None
    if "reason" in plain:
        return "reasoning_effort" if plain == "reasoning" else "include_reasoning"
    return "thinking"
