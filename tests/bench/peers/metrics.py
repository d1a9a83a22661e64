"""From arrivals of tokens to figures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .player import Heard
from .record import PROCESS
from .workload import Request


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure that contenders are compared by."""

    scenario: str
    name: str
    title: str
    unit: str
    better: Literal["more", "less"]


MEASURES = (
    Measure("one", "decode_tok_s", "one stream, decode", "tok/s", "more"),
    Measure("one", "ttft_ms", "first token, prompt 128", "ms", "less"),
    Measure("ttft", "ttft_ms", "first token, prompt 1024", "ms", "less"),
    Measure("few", "tok_s", "16 at once", "tok/s", "more"),
    Measure("few", "itl_p50_ms", "16 at once, between tokens p50", "ms", "less"),
    Measure("few", "itl_p99_ms", "16 at once, between tokens p99", "ms", "less"),
    Measure("many", "tok_s", "64 at once", "tok/s", "more"),
    Measure("many", "itl_p50_ms", "64 at once, between tokens p50", "ms", "less"),
    Measure("many", "itl_p99_ms", "64 at once, between tokens p99", "ms", "less"),
    Measure("prefix", "tok_s", "64 with a shared prefix", "tok/s", "more"),
    Measure("mixed", "itl_p99_ms", "mixed load, between tokens p99", "ms", "less"),
    Measure("mixed", "late_ttft_ms", "mixed load, first token of a long prompt", "ms", "less"),
    Measure(PROCESS, "cold_s", "cold start to first token", "s", "less"),
    Measure(PROCESS, "peak_mb", "peak memory", "MB", "less"),
)


def figures(requests: Sequence[Request], heard: Mapping[int, Heard]) -> dict[str, float]:
    """Of one play. Throughput counts the time from the first request sent to the last token.

    Tokens that arrive together count as one wait and then none, as their reader sees it.
    """
    streams = [heard[one.key] for one in requests if not one.background]
    late = [heard[one.key] for one in requests if one.background]
    gaps = [b - a for one in streams for a, b in zip(one.times, one.times[1:], strict=False)]
    end = max(one.times[-1] for one in heard.values())
    found = {
        "tok_s": sum(len(one.ids) for one in heard.values()) / end,
        "ttft_ms": 1e3 * statistics.median(one.times[0] - one.sent for one in streams),
    }
    if gaps:
        found["itl_p50_ms"] = 1e3 * percentile(gaps, 50)
        found["itl_p99_ms"] = 1e3 * percentile(gaps, 99)
    if late:
        found["late_ttft_ms"] = 1e3 * statistics.median(one.times[0] - one.sent for one in late)
    if len(streams) == 1 and gaps:
        found["decode_tok_s"] = len(gaps) / (streams[0].times[-1] - streams[0].times[0])
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank: the smallest of `values`, one or more, that `percent` of a hundred of them do not exceed."""
    ranked = sorted(values)
    rank = -(-len(ranked) * percent // 100)
    return ranked[max(0, int(rank) - 1)]


def medians(plays: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each figure over the plays of one scenario."""
    return {name: statistics.median(play[name] for play in plays) for name in plays[0]}
