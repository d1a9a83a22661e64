"""The seam between those who ask and those who answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tiergate.budget import Limits

from .config import TierSpec
from .types import ChatRequest, Event, Usage


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


class Sink(Protocol):
    """Who is handed the events of an answer, in the turn of the event loop in which they come. Nothing here raises."""

    def put(self, events: Sequence[Event]) -> None:
        """The next events, one or more."""
        ...

    def fail(self, error: Exception) -> None:
        """Nothing more will come, because of this."""
        ...

    def over(self) -> None:
        """Nothing more will come."""
        ...


class Answer(Protocol):
    """An answer as it comes: `Start` first and `Finish` last, or a `TierError`. Iterate it, or follow it.

    Leave it with `aclose()`, also after a cancellation: iteration that is cancelled aborts the generation at once,
    and `aclose` waits a moment for what it has really cost.
    """

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def __anext__(self) -> Event: ...

    def follow(self, sink: Sink) -> bool:
        """Begin, and hand all events to `sink` as they come; False, and nothing is begun, where this only iterates.

        Spares a task and its wake-ups for every event. Do not iterate then.
        """
        ...

    @property
    def usage(self) -> Usage:
        """Spent so far. The engine's own count once the answer ended, or was closed; before that an estimate."""
        ...

    async def aclose(self) -> None:
        """Abort what still runs, within one engine step. Idempotent; returns within a second or so."""


class Tier(Protocol):
    """Something that answers chats."""

    name: str
    spec: TierSpec

    @property
    def model(self) -> str:
        """The model's public name, as answers report it."""
        ...

    @property
    def thinks(self) -> bool:
        """Whether this tier can think before it answers."""
        ...

    @property
    def closing(self) -> int:
        """Most tokens, beyond the thought itself, that it takes to cut one: the hand-off, the marker and the like."""
        ...

    def health(self) -> TierHealth: ...

    async def prepare(self, request: ChatRequest, *, thinking: bool) -> Prompt:
        """Render and count, in a worker thread when long.

        Raises `BadPrompt`, `BadField`, `ContextTooLong`, `TierUnavailable`.
        """
        ...

    def stream(self, request: ChatRequest, prompt: Prompt, limits: Limits) -> Answer:
        """Answer. Nothing runs before the first event is asked for; `Start` comes when the tier has taken it."""
        ...

    async def close(self) -> None: ...
