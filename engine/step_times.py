"""How long a lane's calls of its runner took, and how long they were expected to."""

from __future__ import annotations

from collections.abc import Callable

from .latency import LatencyModel, Shape


class StepTimes:
    """Counters that only grow, and what the model learns from each call."""

    def __init__(self, model: LatencyModel, clock: Callable[[], float]) -> None:
        self.model = model
        self.calls = 0
        self.seconds = 0.0
        """Inside the runner."""
        self.predicted = 0.0
        """What the model had said of the same steps; of the first, of which it knew nothing, what they took."""
        self._clock = clock
        self._began = 0.0

    def begin(self) -> None:
        """The runner is called now."""
        self._began = self._clock()

    def end(self, shape: Shape, steps: int = 1) -> None:
        """It has come back, behind so many steps of about this shape."""
        seconds = self._clock() - self._began
        self.calls += 1
        self.seconds += seconds
        self.predicted += steps * self.model.predict(shape) if self.model.known else seconds
        self.model.observe(shape, seconds / steps)
