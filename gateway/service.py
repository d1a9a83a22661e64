"""What is open while the app runs. The lifespan in `app.py` owns it; handlers get it as an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tiergate.budget import Keyring, Ledger
from tiergate.tiers import Tier

from .config import Settings
from .errors import ShuttingDown
from .lanes import Lanes, Stats
from .metrics import Metrics
from .reading import Readers
from .relay import Relay
from .route import View, names_of


class Tiers(Protocol):
    """The open tiers, as `open_tiers` returns them."""

    @property
    def tiers(self) -> Mapping[str, Tier]: ...

    @property
    def failure(self) -> str:
        """Why what serves them will never start; empty while it may."""
        ...

    async def stats(self) -> Stats:
        """Engine statistics by lane."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class Service:
    settings: Settings
    tiers: Tiers
    ledger: Ledger
    keys: Keyring
    lanes: Lanes = field(init=False)
    reading: Readers = field(init=False)
    metrics: Metrics = field(default_factory=Metrics)
    draining: bool = False
    """Nothing new is taken; what runs may finish."""
    running: set[Relay] = field(default_factory=set)
    """Answers being generated, each put in and taken out by the task that serves it."""

    _order: tuple[tuple[Tier, View, View], ...] = field(init=False)
    """Each tier as the router sees it while it is ready, and while it is not; in the router's order."""

    def __post_init__(self) -> None:
        self.lanes = Lanes(self.tiers.stats)
        self.reading = Readers(self.settings.server.body_wait)
        ladder, tiers = self.settings.ladder, self.tiers.tiers
        order = (*ladder, *(name for name in tiers if name not in ladder))
        self._order = tuple(
            (
                tiers[name],
                View(name, names_of(tiers[name]), True, name in ladder),
                View(name, names_of(tiers[name]), False, name in ladder),
            )
            for name in order
        )

    def views(self) -> list[View]:
        """The tiers as the router sees them now: those of the ladder first, in its order, then the others."""
        return [ready if tier.health().ready else away for tier, ready, away in self._order]

    def drain(self) -> None:
        """Take nothing new, nor what has not come in yet."""
        self.draining = True
        self.reading.cut(lambda: ShuttingDown("the request was still coming in"))

    def cut(self) -> None:
        """End what still runs: each stream gets an error event."""
        for relay in list(self.running):
            relay.abort(ShuttingDown("the time for running requests is over"))
