"""The words of the books: who asks, what is granted, what was spent. All amounts are tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["hard", "soft"]
Outcome = Literal["ok", "cancelled", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Who pays, and within which bounds. Limits that are None do not bind."""

    id: str
    policy: str = "fixed"
    """Name of the module in `budget/policies` that decides this tenant's grants."""
    mode: Mode = "hard"
    """Whether a thinking budget is a strict cut or an aim."""
    max_thinking: int | None = None
    """Most thinking tokens a request."""
    default_thinking: int | None = None
    """Thinking tokens a request gets that names neither a budget nor an effort; None leaves it to the tier."""
    max_tokens: int | None = None
    """Most generated tokens a request."""
    answer_reserve: int = 128
    """Tokens of a request's cap that thinking may not touch."""
    day_tokens: int | None = None
    """Most tokens, prompt and completion, a UTC day."""
    priority: int = 0
    salt: str = ""
    """Separates this tenant's prefix cache from all others; the id is used when empty."""
    models: tuple[str, ...] = ()
    """Models it may name; empty allows all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a request wants, known before anything runs."""

    prompt_tokens: int
    choices: int = 1
    attempts: int = 1
    """Tiers that may be run for one answer, when the first can be overruled; the worst case is reserved."""
    max_tokens: int | None = None
    """The client's cap on generated tokens a choice, None if it named none."""
    room: int
    """Tokens the tier can still hold behind the prompt."""
    default_max_tokens: int
    """The cap when the client named none, before `room` binds."""
    thinking: int | None = None
    """Thinking tokens wanted, from a budget field or an effort level; None if the request says nothing; 0 for off."""
    soft: bool = False
    """The request asked for an aim, not a cut."""
    closing: int = 0
    """Tokens set aside for closing a thought that is cut; they are no part of the thinking that is granted."""
    tier_thinking: int = 0
    """Thinking tokens the tier gives when nobody says anything; 0 where it cannot think."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a policy decides for one choice of a request."""

    max_tokens: int
    """Generated tokens, thinking included."""
    hard: int | None
    """Thinking tokens at which it is cut; 0 means no thinking at all; None no cut."""
    soft: int | None
    """Thinking tokens aimed at, None without an aim."""
    answer_reserve: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Permission to spend, open until it is settled."""

    id: str
    tenant: str
    limits: Limits
    reserved: int
    """Tokens held in the books until it is settled: the prompt, and the cap times the choices, times the attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a request really used, by the engine's own count, all choices together."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    thinking_tokens: int = 0
    outcome: Outcome = "ok"

    @property
    def total(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """A tenant's books for one window. `reserved` is the sum over open grants."""

    tenant: str
    window: str
    reserved: int
    spent: int
    open_grants: int
    settled_grants: int
    granted: int
    """Grants ever made in this window: `open_grants + settled_grants`."""
