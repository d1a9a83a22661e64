"""How a request may speak of thinking, effort and budgets, in whichever of the usual shapes.

| field | meaning |
| --- | --- |
| `reasoning_effort` | `none` ... `max`; the tier turns a level into tokens |
| `thinking_budget` | thinking tokens outright; 0 is off; wins over an effort |
| `thinking` | `{"type": "enabled" or "adaptive", "budget_tokens": n}` or `{"type": "disabled"}` |
| `thinking_mode` | `hard`: a cut at the budget; `soft`: an aim |

Fields that look like one of these and are not are refused: see `lookalikes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from tiergate.tiers import EFFORTS, Effort

from . import fields
from .errors import BadRequest
from .lookalikes import FIELDS, unknown

MOST = 1 << 31
OPEN_ENDED: Effort = "medium"
"""The effort of a request that turns thinking on and says no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a request says about thinking; None where it says nothing."""

    effort: Effort | None = None
    tokens: int | None = None
    soft: bool = False


SILENT: Final = Wish()


def read_thinking(body: Mapping[str, Any]) -> Wish:
    """Raises `BadRequest` for values out of range and for budgets that contradict each other."""
    if body.keys().isdisjoint(FIELDS):
        return SILENT
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
            raise unknown(f"thinking.{name}", "thinking.budget_tokens")
    if kind == "disabled":
        if budget is not None:
            raise BadRequest("'thinking.budget_tokens' needs thinking.", param="thinking.budget_tokens")
        return kind, 0
    return kind, budget
