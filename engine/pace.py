"""How much one step may take on, by the time that it would take. Pure.

Streams that are being read must not falter because a long prompt has come in: while anyone decodes, a step is given
only so much of a prompt that it is predicted to stay within `itl_target` seconds or, where decoding alone takes longer
than that already, within `STRETCH` times what it takes; but never less than `LEAST_CHUNK` tokens, so that the prompt is
answered too. And a request is let in only while the step that it would join stays within `max_latency`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .latency import LatencyModel, Shape, with_chunk
from .schedule import Running, Waiting

STRETCH = (1.6, 1.3, 1.9)
"""What a prompt may make of the time between the tokens of others, in turn. Were all its chunks alike, nothing could be
learnt of what they cost apart from what the others do; and one that was thought too dear would stay small for ever."""
LEAST_CHUNK = (4, 2, 12)
"""Tokens, in turn."""


@dataclass(frozen=True, slots=True)
class Pace:
    model: LatencyModel
    itl_target: float
    """Seconds between two tokens of a stream that are always fine."""
    max_latency: float = 0.0
    """Seconds; 0 lets in as many as there are places."""

    def budget(self, running: Sequence[Running], waiting: Sequence[Waiting], most: int, turn: int) -> int:
        """Tokens of the next step: `most`, or fewer, but at least one for each who runs. `turn` counts steps."""
        if not self.model.known:
            return most
        decoding = decoding_shape(running)
        start = next((s.computed for s in running if s.wanted - s.computed > 1), None)
        if start is None:
            start = waiting[0].cached if waiting else None
        if not decoding.rows or start is None:
            return most
        limit = max(self.itl_target, STRETCH[turn % len(STRETCH)] * self.model.predict(decoding))
        others = len(running) - decoding.rows
        chunk = self.model.largest_chunk(decoding, start, most - decoding.rows, limit)
        return min(most, decoding.rows + max(chunk, others + LEAST_CHUNK[turn % len(LEAST_CHUNK)]))

    def places(self, running: Sequence[Running], waiting: Sequence[Waiting], most: int) -> int:
        """How many may run at once: `most`, or as many as can decode together within `max_latency`, at least one."""
        if not self.model.known or not self.max_latency:
            return most
        shape = Shape(len(running), sum(s.wanted for s in running))
        places = max(1, len(running))
        for candidate in waiting:
            shape = with_chunk(shape, candidate.wanted, 1)
            if places >= most or self.model.predict(shape) > self.max_latency:
                break
            places = max(1, shape.rows)
        return min(most, places)


def decoding_shape(running: Sequence[Running]) -> Shape:
    """The part of a step that only decodes."""
    lengths = [s.wanted for s in running if s.wanted - s.computed == 1]
    return Shape(len(lengths), sum(lengths))
