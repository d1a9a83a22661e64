"""Notices a write that does not end, at the cost of one timer a stream instead of one a write."""

from __future__ import annotations

import asyncio
from types import TracebackType

from .errors import SlowReader


class StallWatch:
    """Around every write of its task: one that takes longer than `seconds`, or half as much again, is interrupted.

    Not reentrant. The task that makes it is the one it interrupts.
    """

    __slots__ = ("_loop", "_seconds", "_since", "_stalled", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._since: float | None = None
        self._stalled = False
        self._timer = self._loop.call_later(seconds / 2, self._look)

    def __enter__(self) -> None:
        self._since = self._loop.time()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises `SlowReader` in place of the interruption."""
        self._since = None
        if self._stalled and kind is asyncio.CancelledError:
            self._stalled = False
            # Not ours alone if somebody else cancelled the task as well.
            if self._task.uncancel() == 0:
                raise SlowReader from None

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        # Within a write the task is suspended there, so that the cancellation arrives there too.
        if self._since is not None and self._loop.time() - self._since >= self._seconds:
            self._stalled = True
            self._task.cancel()
        self._timer = self._loop.call_later(self._seconds / 2, self._look)
