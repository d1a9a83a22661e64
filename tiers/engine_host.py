"""Gathers the lanes that tiers want on the engine, and opens the one client that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tiergate.engine import EngineConfig, LaneConfig, messages

from .config import EngineSpec
from .engine_client import EngineClient, Process

Launch = Callable[[EngineConfig], Process]


class EngineHost:
    """One engine for all local tiers: first they add their lanes, then it starts."""

    def __init__(self, spec: EngineSpec, launch: Launch) -> None:
        self._spec = spec
        self._launch = launch
        self._lanes: list[LaneConfig] = []
        self.client = EngineClient(
            address=spec.address, launch=None if spec.address else self._start, delay=spec.restart_delay
        )

    def add(self, lane: LaneConfig) -> EngineClient:
        """Have a model hosted under `lane.name`. Before `open` only."""
        self._lanes.append(lane)
        return self.client

    def open(self) -> None:
        """Start the engine, or join it, if any tier needs it; it loads in the background."""
        if self._lanes:
            self.client.open()

    @property
    def failure(self) -> str:
        """Why the engine will never start; empty while it may."""
        return self.client.failure

    async def stats(self) -> Mapping[str, messages.LaneStats]:
        return await self.client.stats()

    async def close(self) -> None:
        await self.client.close()

    def _start(self) -> Process:
        return self._launch(
            EngineConfig(
                lanes=tuple(self._lanes),
                address=self._spec.listen,
                device=self._spec.device,
                threads=self._spec.threads,
            )
        )
