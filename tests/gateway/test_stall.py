from __future__ import annotations

import asyncio

import pytest

from tiergate.gateway.errors import SlowReader
from tiergate.gateway.stall import StallWatch


async def test_a_write_that_does_not_end_is_interrupted_and_the_task_goes_on() -> None:
    watch = StallWatch(0.02)
    with pytest.raises(SlowReader), watch:
        await asyncio.Event().wait()
    with watch:
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    watch.close()


async def test_time_between_writes_does_not_count() -> None:
    watch = StallWatch(0.02)
    for _ in range(3):
        with watch:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
    watch.close()


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    gate = asyncio.Event()

    async def write() -> None:
        watch = StallWatch(10.0)
        try:
            with watch:
                await gate.wait()
        finally:
            watch.close()

    task = asyncio.create_task(write())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_other_failures_pass() -> None:
    watch = StallWatch(10.0)
    with pytest.raises(ValueError, match="x"), watch:
        raise ValueError("x")
    watch.close()


async def test_nothing_happens_after_its_end() -> None:
    watch = StallWatch(0.01)
    watch.__enter__()
    watch.close()
    await asyncio.sleep(0.05)
    watch.__exit__(None, None, None)
