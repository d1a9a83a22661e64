"""The seam between those who ask and those who answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from tiergate.budget import Limits

from .config import TierSpec
from .types import ChatRequest, Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A request as a tier would run it: nothing was generated or charged yet."""

    tokens: int
    """Prompt tokens."""
    room: int
    """Tokens that the context still holds behind them."""
    ids: tuple[int, ...] = ()
    """Token ids, on a tier that has them."""
    opens_thinking: bool = False
    """The prompt ends inside a thinking block."""
    detail: Any = field(default=None, repr=False)
    """The backend's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierHealth:
    """A snapshot. `ready` is false while loading and after a failure."""

    ready: bool
    reason: str = ""
    running: int = 0
    waiting: int = 0


class Tier(Protocol):
    """Something that answers chats."""

    name: str
    spec: TierSpec

    @property
    def model(self) -> str:
        """The model's public name, as answers report it."""

    @property
    def thinks(self) -> bool:
        """Whether this tier can think before it answers."""

    def health(self) -> TierHealth: ...

    async def prepare(self, request: ChatRequest, *, thinking: bool) -> Prompt:
        """Render and count, in a worker thread when long.

        Raises `BadPrompt`, `BadField`, `ContextTooLong`, `TierUnavailable`.
        """

    def stream(self, request: ChatRequest, prompt: Prompt, limits: Limits) -> AsyncIterator[Event]:
        """Answer. Yields `Start` first and `Finish` last, or raises a `TierError`.

        Closing the iterator early (or cancelling its task) aborts the generation within one engine step.
        """

    async def close(self) -> None: ...
