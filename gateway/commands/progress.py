"""Progress bars on a terminal; plain lines where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class ConsoleProgress:
    """One bar a piece of work, as `tiergate.engine.Progress` wants it."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._current: TaskID | None = None

    def begin(self, what: str, total: int | None) -> None:
        self.close()
        self._current = self._bars.add_task(what, total=total)
        if not self._bars.console.is_terminal:
            self._bars.console.print(what)

    def advance(self, amount: int) -> None:
        if self._current is not None:
            self._bars.advance(self._current, amount)

    def close(self) -> None:
        """Fill the current bar: work that has been left behind is done, also where its size was a guess."""
        if self._current is not None:
            task = self._bars.tasks[self._current]
            self._bars.update(self._current, completed=task.total or task.completed, total=task.total or task.completed)
            self._current = None


@contextmanager
def console_progress(console: Console) -> Iterator[ConsoleProgress]:
    """Show bars on `console` while the block runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        progress = ConsoleProgress(bars)
        yield progress
        progress.close()
