"""Keeps text that others wrote from ever becoming a control token (pure).

A chat template joins its own text, whose control strings are meant, with text from users, tools and documents, whose
control strings are not. So a mark is put into every place of a foreign string where a control string could begin or
end, the template is rendered, the control strings that are still whole are then the template's own, and the marks come
out again. The mark is a private-use character that occurs nowhere in the request: nothing a user types can forge or
remove it. A template may trim, join or split foreign text as it likes; it just never sees a control string in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

MARKS = range(0xF0000, 0xFFFFE)
"""Code points to choose from: Supplementary Private Use Area-A."""
STRUCTURE = frozenset(
    {
        "arguments",
        "content",
        "description",
        "function",
        "id",
        "name",
        "parameters",
        "reasoning_content",
        "role",
        "tool_call_id",
        "tool_calls",
        "type",
    }
)
"""Keys by which templates look things up; they are ours."""


class Guard:
    """Marks the foreign strings of one request."""

    __slots__ = ("_firsts", "_lasts", "mark")

    def __init__(self, control: Sequence[str], foreign: Iterable[Any]) -> None:
        """`control` are strings of two characters or more, `foreign` everything that will be covered (JSON values)."""
        texts = [text for value in foreign for text in _strings(value)]
        self.mark = next(mark for mark in map(chr, MARKS) if not any(mark in text for text in texts))
        self._firsts = sorted({string[0] for string in control})
        self._lasts = sorted({string[-1] for string in control})

    def cover(self, value: Any) -> Any:
        """A JSON value with all its strings marked, foreign keys too."""
        if isinstance(value, str):
            for char in self._firsts:
                value = value.replace(char, char + self.mark)
            for char in self._lasts:
                value = value.replace(char, self.mark + char)
            return value
        if isinstance(value, dict):
            return {key if key in STRUCTURE else self.cover(key): self.cover(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.cover(item) for item in value]
        return value

    def uncover(self, text: str) -> str:
        return text.replace(self.mark, "")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
