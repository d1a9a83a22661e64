"""What a budget is, as configuration says it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import BadSetting
from .types import Mode, Tenant

LEAST = {"max_thinking": 0, "default_thinking": 0, "max_tokens": 1, "answer_reserve": 0, "day_tokens": 0}
"""The smallest value of each limit, when it is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpec:
    """The `[budget]` table."""

    store: str = "sqlite:"
    """Where the books are kept: `memory:`, or `sqlite:` and maybe a path (relative ones lie in the data folder)."""
    lease: float = 30.0
    """Seconds after which the open grants of a dead process are settled by the others; renewed at a third of it."""

    def __post_init__(self) -> None:
        if not 1 <= self.lease <= 86400:
            raise BadSetting("budget.lease", f"is seconds from 1 to 86400, not {self.lease}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSpec:
    """One `[tenants.<id>]` table: the keys of a tenant, and its limits as in `Tenant`."""

    keys: tuple[str, ...] = ()
    """API keys, plain or as `sha256:` and the hash of the key in hex. No keys at all: every caller is `local`."""
    policy: str = "fixed"
    """Which module of `budget/policies` decides its grants."""
    mode: Mode = "hard"
    """Whether a thinking budget is a strict cut (`hard`) or an aim (`soft`)."""
    max_thinking: int | None = None
    """Most thinking tokens a request."""
    default_thinking: int | None = None
    """Thinking tokens of a request that asks for none in particular; unset leaves it to the tier."""
    max_tokens: int | None = None
    """Most generated tokens a request, thinking included."""
    answer_reserve: int = 128
    """Tokens of a request's cap that thinking may not touch."""
    day_tokens: int | None = None
    """Most tokens, prompt and completion, a UTC day."""
    priority: int = 0
    """Higher is served first."""
    salt: str = ""
    """Separates this tenant's prefix cache from all others; its id when empty."""
    models: tuple[str, ...] = ()
    """Models it may name; empty allows all."""

    def tenant(self, id: str) -> Tenant:
        """The tenant of that id with these limits.

        Raises `BadSetting` for a limit out of range, or an id that is not 1 to 64 letters, digits, `_`, `-` and `.`.
        """
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", id):
            raise BadSetting(f"tenants.{id}", "a tenant's id is 1 to 64 letters, digits, '_', '-' and '.'")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise BadSetting(f"tenants.{id}.{name}", f"is {least} or more, not {value}")
        return Tenant(
            id=id,
            policy=self.policy,
            mode=self.mode,
            max_thinking=self.max_thinking,
            default_thinking=self.default_thinking,
            max_tokens=self.max_tokens,
            answer_reserve=self.answer_reserve,
            day_tokens=self.day_tokens,
            priority=self.priority,
            salt=self.salt,
            models=self.models,
        )
