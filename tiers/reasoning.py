"""Splits what a model writes into thinking, answer and tool calls (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .calls import Written, parse_call
from .match import Matcher
from .pieces import HoldBack, Piece, cut

State = Literal["answer", "think", "call"]
Role = Literal["open", "close", "call", "end"]
"""What a marker does: open or close thinking, begin or end a tool call."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A string that structures the output. With an `id` it is that one token and never text that looks the same."""

    role: Role
    text: str
    id: int | None = None


class Span(NamedTuple):
    """Text of one kind."""

    kind: Literal["think", "text"]
    piece: Piece


class Splitter:
    """Follows one answer through its markers; the result does not depend on how the text was cut into pieces.

    Inside a tool call every marker but its own end is data. A call that begins inside thinking ends the thinking. A
    closer without an opener is dropped. Line ends right behind a marker belong to the marker as long as no answer text
    stands before it. A call that does not parse comes out as the text it is; one that `max_tokens` cut does not come
    out at all.
    """

    __slots__ = ("_body", "_held", "_markers", "_matchers", "_opener", "_spoken", "_state", "_trim")

    def __init__(self, markers: Iterable[Marker], *, thinking: bool = False) -> None:
        """`thinking`: the prompt left a block open. Without `call` markers, calls are plain text."""
        textual = [marker for marker in markers if marker.id is None]
        self._markers: dict[State, list[Marker]] = {
            "answer": [marker for marker in textual if marker.role != "end"],
            "think": [marker for marker in textual if marker.role != "end"],
            "call": [marker for marker in textual if marker.role == "end"],
        }
        self._matchers = {state: Matcher([marker.text for marker in found]) for state, found in self._markers.items()}
        self._state: State = "think" if thinking else "answer"
        self._trim = False
        self._spoken = False
        self._held = HoldBack()
        self._opener: list[Piece] = []
        self._body: list[Piece] = []

    @property
    def thinking(self) -> bool:
        """The next token is thinking, unless it is a marker."""
        return self._state == "think"

    def feed(self, piece: Piece) -> list[Span | Written]:
        """Text of the next tokens."""
        out: list[Span | Written] = []
        if not self._markers[self._state]:
            self._emit([piece], out)
            return out
        while piece.text:
            matcher = self._matchers[self._state]
            before = self._held.length
            self._held.push(piece)
            hit = matcher.feed(piece.text)
            if hit is None:
                self._emit(self._held.release(matcher.held), out)
                break
            marker = self._markers[self._state][hit.pattern]
            self._emit(self._held.take(before + hit.end - len(marker.text)), out)
            spelled = self._held.take(len(marker.text))
            _, piece = cut(piece, hit.end)
            self._held = HoldBack()
            self._pass(marker.role, spelled, out)
        return out

    def mark(self, marker: Marker, piece: Piece) -> list[Span | Written]:
        """The next token is a marker with an id; `piece` is its name as text, for where it turns out to be data."""
        out: list[Span | Written] = []
        self._flush(out)
        if self._state == "call" and marker.role != "end":
            self._body.append(piece)
        else:
            self._pass(marker.role, [piece], out)
        return out

    def finish(self, *, complete: bool) -> list[Span | Written]:
        """The output ended, by itself if `complete`, else because it was cut."""
        out: list[Span | Written] = []
        self._flush(out)
        if self._state == "call" and complete:
            self._end_call([], out)
        return out

    def _flush(self, out: list[Span | Written]) -> None:
        self._emit(self._held.release(0), out)
        self._matchers[self._state].reset()

    def _pass(self, role: Role, spelled: list[Piece], out: list[Span | Written]) -> None:
        """Go over a marker into the next state."""
        if role == "call":
            self._state = "call"
            self._opener, self._body = list(spelled), []
        elif role == "end":
            if self._state == "call":
                self._end_call(spelled, out)
        else:
            self._state = "think" if role == "open" else "answer"
            self._trim = role == "open" or not self._spoken

    def _end_call(self, spelled: list[Piece], out: list[Span | Written]) -> None:
        self._state = "answer"
        call = parse_call("".join(piece.text for piece in self._body))
        if call is not None:
            out.append(call)
            self._trim = True
        else:
            self._trim = False
            self._emit([*self._opener, *self._body, *spelled], out)
        self._opener, self._body = [], []

    def _emit(self, pieces: list[Piece], out: list[Span | Written]) -> None:
        if self._state == "call":
            self._body.extend(pieces)
            return
        for piece in pieces:
            if self._trim:
                _, piece = cut(piece, len(piece.text) - len(piece.text.lstrip("\r\n")))
                self._trim = not piece.text
            if piece.text:
                self._spoken = self._spoken or self._state == "answer"
                out.append(Span("think" if self._state == "think" else "text", piece))
