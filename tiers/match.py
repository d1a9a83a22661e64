"""Finds strings in text that arrives in pieces (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hit:
    """A pattern that was completed: its index, and how many characters of the piece just fed it took."""

    pattern: int
    end: int


class Matcher:
    """Knuth-Morris-Pratt over several patterns at once, fed piece by piece.

    The pattern that is completed first wins, the longest of those that end at the same character, so the result does
    not depend on how the text was cut. A character costs amortised constant time a pattern, whatever the patterns
    are, and failure tables grow only as far as text has really matched.
    """

    __slots__ = ("_fail", "_first", "_patterns", "_state")

    def __init__(self, patterns: Sequence[str]) -> None:
        """`patterns` are not empty strings."""
        assert all(patterns)
        self._patterns = tuple(patterns)
        self._first = frozenset(pattern[0] for pattern in patterns)
        self._fail: list[list[int]] = [[0, 0] for _ in patterns]
        self._state = [0] * len(self._patterns)

    @property
    def held(self) -> int:
        """Length of the longest end of the text so far that may yet become a pattern, in characters."""
        return max(self._state, default=0)

    def reset(self) -> None:
        """Forget the text so far."""
        self._state = [0] * len(self._patterns)

    def feed(self, text: str) -> Hit | None:
        """Read `text` up to the first completed pattern and forget everything then; the rest is not read."""
        state = self._state
        if not any(state):
            start = min((at for char in self._first if (at := text.find(char)) >= 0), default=-1)
            if start < 0:
                return None
        else:
            start = 0
        for at in range(start, len(text)):
            char = text[at]
            best = -1
            for index, pattern in enumerate(self._patterns):
                matched = state[index]
                while matched and pattern[matched] != char:
                    matched = self._failure(index, matched)
                if pattern[matched] == char:
                    matched += 1
                    if matched == len(pattern) and (best < 0 or matched > len(self._patterns[best])):
                        best = index
                state[index] = matched
            if best >= 0:
                self.reset()
                return Hit(best, at + 1)
        return None

    def _failure(self, index: int, matched: int) -> int:
        """Length of the longest proper end of the pattern's first `matched` characters that also begins it."""
        table, pattern = self._fail[index], self._patterns[index]
        while len(table) <= matched:
            last = len(table) - 1
            length = table[last]
            while length and pattern[length] != pattern[last]:
                length = table[length]
            table.append(length + 1 if pattern[length] == pattern[last] else 0)
        return table[matched]
