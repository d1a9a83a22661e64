"""Opens the configured tiers and what they share, and closes them again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, cast

from tiergate.engine import launch as launch_engine
from tiergate.engine import messages

from .config import EngineSpec, TierSpec
from .engine_host import EngineHost, Launch
from .errors import ModelMissing
from .shared import Models, Shared
from .tier import Tier, TierHealth


class Backend(Protocol):
    """A module of `tiers/backends`."""

    async def open(self, name: str, spec: TierSpec, shared: Shared) -> Tier: ...


@dataclass(frozen=True, slots=True)
class OpenTiers:
    """Tiers by name, in the order of the configuration. They may still be loading."""

    tiers: Mapping[str, Tier]
    _engine: EngineHost

    def health(self) -> dict[str, TierHealth]:
        return {name: tier.health() for name, tier in self.tiers.items()}

    def ready(self) -> bool:
        """Whether every tier can answer now."""
        return all(tier.health().ready for tier in self.tiers.values())

    @property
    def failure(self) -> str:
        """Why the engine will never start, as for a model that cannot be loaded; empty while it may."""
        return self._engine.failure

    async def stats(self) -> Mapping[str, messages.LaneStats]:
        """The engine's counters, a lane (its name is its tier's); empty while no engine answers."""
        return await self._engine.stats()

    async def close(self) -> None:
        """Close every tier and stop the engine if it is ours. Open answers end with a `TierError`."""
        for tier in self.tiers.values():
            await tier.close()
        await self._engine.close()


async def open_tiers(
    specs: Mapping[str, TierSpec],
    engine: EngineSpec,
    catalog: Models,
    *,
    launch: Launch = launch_engine,
    clock: Callable[[], float] = time.monotonic,
    load_wait: float = 10.0,
) -> OpenTiers:
    """Open every tier; models load in the background, and `OpenTiers.ready()` says when they have.

    `load_wait`: seconds that a request waits for a tier that is loading before it fails with `TierUnavailable`.
    Raises `ModelMissing` for a model or a kind that is not there.
    """
    host = EngineHost(engine, launch)
    shared = Shared(models=catalog, engine=host, clock=clock, load_wait=load_wait)
    tiers: dict[str, Tier] = {}
    try:
        for name, spec in specs.items():
            tiers[name] = await _backend(spec.kind).open(name, spec, shared)
    except BaseException:
        for tier in tiers.values():
            await tier.close()
        await host.close()
        raise
    host.open()
    return OpenTiers(MappingProxyType(tiers), host)


def _backend(kind: str) -> Backend:
    """The module of that name among the files of `backends`. Raises `ModelMissing`."""
    kinds = sorted(path.stem for path in (Path(__file__).parent / "backends").glob("[a-z]*.py"))
    if kind not in kinds:
        raise ModelMissing(f"there is no kind of tier called {kind!r}; there are: {', '.join(kinds)}")
    return cast(Backend, import_module(f".backends.{kind}", __package__))
