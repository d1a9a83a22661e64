"""The ids by which an engine recognises and forces a model's markers."""

from __future__ import annotations

from dataclasses import dataclass

from tiergate.engine import messages

from .chat import CALL, CALL_END, Chat
from .config import ThinkingSpec

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerIds:
    """The part of a `ThinkLimit` that only the model decides."""

    openers: tuple[Ids, ...]
    closers: tuple[Ids, ...]
    """The first is the one to force."""
    calls: tuple[Ids, ...]
    call_ends: tuple[Ids, ...]
    handoff: Ids
    after: Ids
    partial: dict[int, int]
    """Tokens that end inside a character, and the bytes that it still lacks."""
    continuing: dict[int, int]
    """Tokens that are bytes from inside a character alone, and how many."""

    @property
    def closing(self) -> int:
        """Most tokens that it takes to cut a thought, those included for which a cut may wait."""
        waits = messages.CHARACTER_GRACE * bool(self.partial) + max((len(call) - 1 for call in self.calls), default=0)
        return len(self.handoff) + max(map(len, self.closers)) + len(self.after) + waits


def read_markers(chat: Chat, thinking: ThinkingSpec, after: str) -> MarkerIds:
    encoder = chat.encoder
    partial, continuing = chat.vocabulary.fragments()
    return MarkerIds(
        openers=_spellings(chat, thinking.opener),
        closers=_spellings(chat, thinking.closer),
        calls=_spellings(chat, CALL),
        call_ends=_spellings(chat, CALL_END),
        handoff=encoder.plain(thinking.handoff),
        after=encoder.plain(after),
        partial=partial,
        continuing=continuing,
    )


def _spellings(chat: Chat, marker: str) -> tuple[Ids, ...]:
    """Id sequences in which the model may write a marker, its own first.

    A marker that is no token of its own may merge with the line ends behind it.
    """
    id = chat.encoder.marker(marker)
    if id is not None:
        return ((id,),)
    return tuple(dict.fromkeys(chat.encoder.plain(marker + end) for end in ("", "\n", "\n\n")))
