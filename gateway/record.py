"""What is remembered of one request: facts and counts, never the text of a question or an answer."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from tiergate.tiers import Usage


def new_id() -> str:
    """What `x-request-id` says."""
    return f"req_{secrets.token_hex(12)}"


@dataclass(slots=True)
class Record:
    """Filled in while the request runs, by the one task that serves it."""

    id: str
    tenant: str = ""
    asked: str = ""
    """The model that the request named."""
    tier: str = ""
    model: str = ""
    """What really served."""
    label: str = ""
    """Class of complexity."""
    score: float = 0.0
    reason: str = ""
    """Why it was routed like that."""
    route: str = ""
    """As `x-tiergate-route` tells it."""
    read: bool = False
    """It had been read whole, and counted as running since then."""
    stream: bool = False
    choices: int = 1
    thinking: int | None = None
    """Thinking tokens granted a choice; None is without limit."""
    usage: Usage = field(default_factory=Usage)
    events: int = 0
    status: int = 0
    error: str = ""
    """Code of the failure, empty on success."""
    first: float | None = None
    """Seconds to the first piece of the answer."""
    seconds: float = 0.0

    def facts(self) -> dict[str, Any]:
        """As a log line holds them."""
        usage = self.usage
        return {
            "id": self.id,
            "status": self.status,
            "error": self.error,
            "tenant": self.tenant,
            "asked": self.asked,
            "tier": self.tier,
            "model": self.model,
            "class": self.label,
            "score": round(self.score, 3),
            "reason": self.reason,
            "stream": self.stream,
            "choices": self.choices,
            "thinking_budget": self.thinking,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "forced_tokens": usage.forced_tokens,
            "events": self.events,
            "first_ms": None if self.first is None else round(self.first * 1000, 2),
            "total_ms": round(self.seconds * 1000, 2),
        }
