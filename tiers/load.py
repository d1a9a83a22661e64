"""How busy a tier is, and how its answers fare."""

from __future__ import annotations

from collections.abc import Callable

from .health import Breaker


class Load:
    """Owns a tier's counts of open answers, and its breaker."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.waiting = 0
        """Answers that have no token yet."""
        self.running = 0
        self.breaker = Breaker(clock)

    def began(self) -> None:
        self.waiting += 1

    def answered(self) -> None:
        """The first token of an answer came."""
        self.waiting -= 1
        self.running += 1

    def ended(self, *, answered: bool, sound: bool | None) -> None:
        """`sound`: whether the tier worked; None where that cannot be told (cancelled, engine gone)."""
        if answered:
            self.running -= 1
        else:
            self.waiting -= 1
        if sound:
            self.breaker.succeeded()
        elif sound is not None:
            self.breaker.failed()
