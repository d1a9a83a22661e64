from __future__ import annotations

import asyncio

from tiergate.gateway.lanes import Lanes, Stats


async def test_a_quick_engine_gives_fresh_figures() -> None:
    figures = iter([{"fast": 1}, {"fast": 2}])

    async def ask() -> Stats:
        return next(figures)

    lanes = Lanes(ask)
    assert await lanes.latest() == {"fast": 1}
    assert await lanes.latest() == {"fast": 2}


async def test_a_slow_one_is_not_waited_for_and_asked_once_at_a_time() -> None:
    gate, asked = asyncio.Event(), 0

    async def ask() -> Stats:
        nonlocal asked
        asked += 1
        if asked > 1:
            await gate.wait()
        return {"fast": asked}

    lanes = Lanes(ask)
    assert await lanes.latest() == {"fast": 1}
    assert await lanes.latest() == await lanes.latest() == {"fast": 1}
    assert asked == 2
    gate.set()
    assert await lanes.latest() == {"fast": 2}
