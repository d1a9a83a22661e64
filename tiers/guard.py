"""Keeps text that others wrote from ever becoming a control token (pure).

A chat template joins its own text, whose control strings are meant, with text from users, tools and documents, whose
control strings are not. So a mark is put into every place of a foreign string where a control string could begin or
end, and into a foreign string that is the name in one (`think`, around which a template may write `<` and `>`); the
template is rendered, the control strings that are still whole are then the template's own, and the marks come
out again. The mark is a private-use character that occurs nowhere in the request: nothing a user types can forge or
remove it. A template may trim, join or split foreign text as it likes; it just never sees a control string in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .errors import BadPrompt

MARKS = range(0xF0000, 0xFFFFE)
"""Code points to choose from: Supplementary Private Use Area-A."""
_MARK = re.compile(f"[{chr(MARKS[0])}-{chr(MARKS[-1])}]")
_EDGES = re.compile(r"^[\W_]+|[\W_]+$")
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


class Covered(NamedTuple):
    """Foreign values with marks in them."""

    value: Any
    mark: str

    def uncover(self, text: str) -> str:
        """Text that was made of the value, without the marks."""
        return text.replace(self.mark, "")


class Guard:
    """Covers foreign values against a model's control strings."""

    def __init__(self, control: Sequence[str]) -> None:
        """`control` are strings of two characters or more."""
        self._firsts = sorted({string[0] for string in control})
        self._lasts = sorted({string[-1] for string in control})
        self._names = frozenset(_EDGES.sub("", string) for string in control) - {""}

    def cover(self, value: Any) -> Covered:
        """Mark all strings in a JSON value, foreign keys too. Raises `BadPrompt` if it holds every possible mark."""
        mark = chr(MARKS[0])
        try:
            return Covered(self._cover(value, mark), mark)
        except _MarkTaken:
            taken = {mark for text in _strings(value) for mark in _MARK.findall(text)}
            free = next((chr(mark) for mark in MARKS if chr(mark) not in taken), None)
            if free is None:
                raise BadPrompt("the messages hold every private-use character there is") from None
            return Covered(self._cover(value, free), free)

    def _cover(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            if mark in value:
                raise _MarkTaken
            name = value.strip()
            if name in self._names:
                value = value.replace(name[0], name[0] + mark, 1)
            for char in self._firsts:
                value = value.replace(char, char + mark)
            for char in self._lasts:
                value = value.replace(char, mark + char)
            return value
        if isinstance(value, dict):
            return {
                key if key in STRUCTURE else self._cover(key, mark): self._cover(item, mark)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._cover(item, mark) for item in value]
        return value


class _MarkTaken(Exception):
    """The mark stands in the text."""


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
