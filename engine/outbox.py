"""Replies on their way to clients."""

from __future__ import annotations

from .messages import Failed, Finished, Reply
from .sequence import Sequence

Replies = dict[bytes, list[Reply]]
"""By client, in order."""


class Outbox:
    def __init__(self) -> None:
        self._replies: Replies = {}
        self._ended: list[Sequence] = []

    def to(self, client: bytes) -> list[Reply]:
        """Where to append what this client is to be told. Good until the next `take` or `discard`."""
        replies = self._replies.get(client)
        if replies is None:
            replies = self._replies[client] = []
        return replies

    def end(self, sequence: Sequence, last: Finished | Failed) -> None:
        """The last word on a sequence, which its lane has forgotten."""
        self.to(sequence.client).append(last)
        self._ended.append(sequence)

    def take(self) -> Replies:
        """What is to be sent, each reply given out once; clients with nothing to hear are left out."""
        replies, self._replies = self._replies, {}
        return replies

    def take_ended(self) -> list[Sequence]:
        """Who has ended since this was last asked."""
        if not self._ended:
            return []
        ended, self._ended = self._ended, []
        return ended

    def discard(self, client: bytes) -> None:
        """Send this client nothing of it."""
        self._replies.pop(client, None)
