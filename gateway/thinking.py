"""How a request may speak of thinking, effort and budgets, in whichever of the usual shapes.

| field | meaning |
| --- | --- |
| `reasoning_effort` | `none` ... `max`; the tier turns a level into tokens |
| `thinking_budget` | thinking tokens outright; 0 is off; wins over an effort |
| `thinking` | `{"type": "enabled" or "adaptive", "budget_tokens": n}` or `{"type": "disabled"}` |
| `thinking_mode` | `hard`: a cut at the budget; `soft`: an aim |

A budget that is misspelt or put in the wrong place must never be ignored silently: somebody would pay for it. So fields
that look like one of these and are not are refused, with the likeliest right name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from tiergate.tiers import EFFORTS, Effort

from . import fields
from .errors import BadRequest

MOST = 1 << 31
MOST_FIELDS = 128
FIELDS = ("reasoning_effort", "thinking", "thinking_budget", "thinking_mode")
SUSPECT = re.compile("think|budget|effort|reason")
OPEN_ENDED: Effort = "medium"
"""The effort of a request that turns thinking on and says no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a request says about thinking; None where it says nothing."""

    effort: Effort | None = None
    tokens: int | None = None
    soft: bool = False


def read_thinking(body: Mapping[str, Any]) -> Wish:
    """Raises `BadRequest` for values out of range and for budgets that contradict each other."""
    effort = cast(Effort | None, fields.choice(body, "reasoning_effort", EFFORTS))
    tokens = fields.integer(body, "thinking_budget", low=0, high=MOST)
    mode = fields.choice(body, "thinking_mode", ("hard", "soft"))
    thinking = fields.mapping(body, "thinking")
    if thinking is not None:
        kind, nested = _read_object(thinking)
        if tokens is not None and nested is not None and nested != tokens:
            raise BadRequest(f"'thinking_budget' is {tokens} but 'thinking' says {nested}.", param="thinking_budget")
        tokens = nested if tokens is None else tokens
        if tokens is None and effort is None and kind != "disabled":
            effort = OPEN_ENDED
    return Wish(effort=effort, tokens=tokens, soft=mode == "soft")


def _read_object(thinking: dict[str, Any]) -> tuple[str, int | None]:
    kind = fields.choice(thinking, "type", ("enabled", "adaptive", "disabled"), at="thinking")
    if kind is None:
        raise fields.missing("thinking.type")
    budget = fields.integer(thinking, "budget_tokens", low=1, high=MOST, at="thinking")
    for name in thinking:
        if name not in ("type", "budget_tokens", "display"):
            raise _unknown(f"thinking.{name}", "thinking.budget_tokens")
    if kind == "disabled":
        if budget is not None:
            raise BadRequest("'thinking.budget_tokens' needs thinking.", param="thinking.budget_tokens")
        return kind, 0
    return kind, budget


def refuse_lookalikes(body: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse unknown fields, at the top or one level below an unknown one, that look as if they limited thinking.

    `known` are the dialect's own top-level fields. Raises `BadRequest`.
    """
    if len(body) > MOST_FIELDS:
        raise BadRequest(f"The request has more than {MOST_FIELDS} fields.", code="too_many_fields")
    for name, value in body.items():
        if name in known or value is None:
            continue
        if (meant := _meant(name)) is not None:
            raise _unknown(name, meant)
        if type(value) is dict:
            for inner in islice(value, MOST_FIELDS):
                if (meant := inner if inner in FIELDS else _meant(inner)) is not None:
                    raise _unknown(f"{name}.{inner}", meant)


def _meant(name: str) -> str | None:
    """The field that `name` was probably meant to be; None when it has nothing to do with thinking."""
    plain = re.sub("[^a-z]", "_", name[:64].lower())
    close = difflib.get_close_matches(plain, FIELDS, n=1, cutoff=0.8)
    if close:
        return close[0]
    if not SUSPECT.search(plain):
        return None
    if "budget" in plain or "token" in plain:
        return "thinking_budget"
    if "reason" in plain:
        return "reasoning_effort" if "effort" in plain or plain == "reasoning" else "include_reasoning"
    return "reasoning_effort" if "effort" in plain else "thinking"


def _unknown(name: str, meant: str) -> BadRequest:
    shown = fields.cut(name)
    return BadRequest(f"Unknown parameter: '{shown}'. Did you mean '{meant}'?", param=shown, code="unknown_parameter")
