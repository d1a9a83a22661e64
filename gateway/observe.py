"""One record a request, into the log and the metrics."""

from __future__ import annotations

import logging

from .errors import Problem
from .metrics import Metrics
from .record import Record

log = logging.getLogger("tiergate.request")


def ended(metrics: Metrics, record: Record, problem: Problem | None, error: BaseException | None) -> None:
    """The last word on a request; an unexpected error goes to the log with its traceback, and nowhere else."""
    if problem is not None:
        record.status = record.status or problem.status
        record.error = problem.code or problem.type
    metrics.ended(record)
    level = logging.INFO if problem is None else problem.level
    if log.isEnabledFor(level):
        trace = (type(error), error, error.__traceback__) if problem is not None and problem.trace and error else None
        # By hand, because `log` would walk the stack for a place that is always this one.
        line = logging.LogRecord(log.name, level, __file__, 0, "request", None, trace)
        line.facts = record.facts()
        log.handle(line)
