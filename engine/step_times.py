"""How long a lane's calls of its runner took, and how long they were expected to."""

from __future__ import annotations

from collections.abc import Callable

from .latency import LatencyModel, Shape

TOGETHER = 4
"""Calls of which the model learns at once while everyone only decodes: learning costs more than timing."""


class StepTimes:
    """Counters that only grow, and what the model learns from the calls."""

    def __init__(self, model: LatencyModel, clock: Callable[[], float]) -> None:
        self.model = model
        self.calls = 0
        self.seconds = 0.0
        """Inside the runner."""
        self.predicted = 0.0
        """What the model had said of the same steps; of the first, of which it knew nothing, what they took."""
        self._clock = clock
        self._began = 0.0
        self._pending_calls = self._pending_steps = 0
        self._pending_seconds = 0.0
        self._pending = Shape(0)
        """The latest call's shape; those of the calls before differ in their context, by a few tokens."""

    def begin(self) -> None:
        """The runner is called now."""
        self._began = self._clock()

    def end(self, shape: Shape, steps: int = 1) -> None:
        """It has come back, behind so many steps of about this shape."""
        seconds = self._clock() - self._began
        self.calls += 1
        self.seconds += seconds
        self.predicted += steps * self.model.predict(shape) if self.model.known else seconds
        if self._pending_calls and (shape.rows != self._pending.rows or shape.pairs or self._pending.pairs):
            self._learn()
        self._pending = shape
        self._pending_calls += 1
        self._pending_steps += steps
        self._pending_seconds += seconds
        if self._pending_calls >= TOGETHER or not self.model.settled:
            self._learn()

    def _learn(self) -> None:
        steps = self._pending_steps
        self.model.observe(self._pending, self._pending_seconds / steps, steps)
        self._pending_calls = self._pending_steps = 0
        self._pending_seconds = 0.0
