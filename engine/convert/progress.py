"""How long work tells whoever waits for it, without knowing of a console."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """One bar at a time: `begin` opens the next and closes the one before it."""

    def begin(self, what: str, total: int | None) -> None:
        """Start on `what`, a few words for a reader. `total` in bytes; None when it cannot be known."""

    def advance(self, amount: int) -> None:
        """`amount` further bytes are done."""


class Silent:
    """A `Progress` that says nothing."""

    def begin(self, what: str, total: int | None) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass
