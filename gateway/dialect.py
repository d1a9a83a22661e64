"""What the flow of a request needs of an API dialect: both directions, and nothing of HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tiergate.budget import Tenant
from tiergate.tiers import Event, Usage

from .call import Call
from .errors import Problem


class Writer(Protocol):
    """Writes the events of all choices of one answer, which arrive mixed but in order within a choice."""

    def write(self, batch: Sequence[tuple[int, Event]]) -> bytes:
        """What leaves now; a writer of whole answers keeps everything and gives nothing."""
        ...

    def end(self, usage: Usage) -> bytes:
        """What leaves last, after every choice has finished."""
        ...


class Dialect(Protocol):
    def parse(self, body: Mapping[str, Any], tenant: Tenant) -> Call:
        """Raises `BadRequest`. The tenant lends the request its salt and its priority."""
        ...

    def writer(self, call: Call, *, id: str, created: int) -> Writer:
        """A fresh writer: of events when the call streams, else of one body."""
        ...

    def error(self, problem: Problem) -> bytes:
        """The body of a failed request."""
        ...

    def error_event(self, problem: Problem) -> bytes:
        """The last event of a stream that fails after its first byte."""
        ...
