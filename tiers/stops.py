"""Ends an answer at a stop string (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from .match import Matcher
from .pieces import HoldBack, Piece


class Stops:
    """Lets an answer pass up to the first stop string, wherever tokens begin and end.

    The string that is completed first wins, the longest of those that end together. Text is held back only while it
    may be the beginning of one, so never more than the longest string less a character (with log-probabilities: up to
    the beginning of the token that this falls into).
    """

    __slots__ = ("_held", "_matcher", "_strings", "matched")

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._matcher = Matcher(self._strings)
        self._held = HoldBack()
        self.matched: str | None = None
        """The string that ended the answer; nothing passes any more."""

    def feed(self, piece: Piece) -> list[Piece]:
        """The text that may leave now."""
        if self.matched is not None:
            return []
        before = self._held.length
        self._held.push(piece)
        hit = self._matcher.feed(piece.text)
        if hit is None:
            return self._held.release(self._matcher.held)
        self.matched = self._strings[hit.pattern]
        return self._held.take(before + hit.end - len(self.matched))

    def finish(self) -> list[Piece]:
        """The answer ended by itself: what is left of it."""
        return [] if self.matched is not None else self._held.release(0)
