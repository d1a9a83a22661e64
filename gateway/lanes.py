"""The engine's statistics, never waited for longer than a scrape can bear.

The engine answers between two steps. While a step is long, the figures of the last answer are given out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

Stats = Mapping[str, Any]
"""By lane; see `tiergate.engine.messages.LaneStats`."""

PATIENCE: Final = 0.02
"""Seconds."""


class Lanes:
    def __init__(self, ask: Callable[[], Coroutine[Any, Any, Stats]]) -> None:
        """`ask` gets fresh figures from the engine."""
        self._ask = ask
        self._latest: Stats = {}
        self._asking: asyncio.Task[None] | None = None

    async def latest(self) -> Stats:
        """Fresh figures if the engine gives them soon, else the ones before; empty before the first."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._refresh())
        await asyncio.wait((self._asking,), timeout=PATIENCE)
        return self._latest

    async def _refresh(self) -> None:
        self._latest = await self._ask()
