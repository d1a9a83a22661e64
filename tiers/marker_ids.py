"""The ids by which an engine recognises and forces a model's markers."""

from __future__ import annotations

from dataclasses import dataclass

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
    partial: Ids
    """Tokens behind which a character is certainly not complete."""


def read_markers(chat: Chat, thinking: ThinkingSpec, after: str) -> MarkerIds:
    encoder = chat.encoder
    return MarkerIds(
        openers=_spellings(chat, thinking.opener),
        closers=_spellings(chat, thinking.closer),
        calls=_spellings(chat, CALL),
        call_ends=_spellings(chat, CALL_END),
        handoff=encoder.plain(thinking.handoff),
        after=encoder.plain(after),
        partial=chat.vocabulary.partial(),
    )


def _spellings(chat: Chat, marker: str) -> tuple[Ids, ...]:
    """Id sequences in which the model may write a marker, its own first.

    A marker that is no token of its own may merge with the line ends behind it.
    """
    id = chat.encoder.marker(marker)
    if id is not None:
        return ((id,),)
    return tuple(dict.fromkeys(chat.encoder.plain(marker + end) for end in ("", "\n", "\n\n")))
