"""Counters of one process, as plain numbers that a scrape turns into Prometheus' format.

A request adds to a few dictionaries; nothing else is done until somebody asks. The engine's own figures are read at the
scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from .record import Record

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds in seconds; a last one without bound follows."""
LANE_GAUGES: Final = ("running", "waiting", "free", "cached", "active", "blocks")
LANE_COUNTERS: Final = (
    "steps", "calls", "prompt_tokens", "generated_tokens", "cached_tokens", "preemptions", "busy_seconds",
    "runner_seconds", "predicted_seconds", "drafted_tokens", "accepted_tokens",
)  # fmt: skip


@dataclass(slots=True)
class Times:
    """Durations in buckets."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        rows, so_far = [], 0
        for bound, count in zip((*BUCKETS, float("inf")), self.counts, strict=True):
            so_far += count
            rows.append(("+Inf" if bound == float("inf") else str(bound), so_far))
        return rows


class Metrics(Collector):
    """What a process did since its start."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, str], int] = defaultdict(int)
        self._routes: dict[tuple[str, str], int] = defaultdict(int)
        self._failures: dict[str, int] = defaultdict(int)
        self._tokens: dict[tuple[str, str], int] = defaultdict(int)
        self._seconds: dict[str, Times] = defaultdict(Times)
        self._first: dict[str, Times] = defaultdict(Times)
        self._events = 0
        self._active = 0
        self._lanes: Mapping[str, Any] = {}

    @property
    def active(self) -> int:
        """Requests being answered right now."""
        return self._active

    def began(self, record: Record) -> None:
        """The request has been read, and runs until it ends."""
        record.read = True
        self._active += 1

    def ended(self, record: Record) -> None:
        self._active -= record.read
        tier = record.tier
        self._requests[tier, str(record.status), "true" if record.stream else "false"] += 1
        self._seconds[tier].add(record.seconds)
        self._events += record.events
        if record.error:
            self._failures[record.error] += 1
        if record.label:
            self._routes[record.label, tier] += 1
        if record.first is not None:
            self._first[tier].add(record.first)
        usage = record.usage
        for kind, count in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("completion", usage.completion_tokens),
            ("reasoning", usage.reasoning_tokens),
        ):
            if count:
                self._tokens[tier, kind] += count

    def render(self, lanes: Mapping[str, Any]) -> bytes:
        """The text of a scrape. `lanes` are the engine's statistics by lane name."""
        self._lanes = lanes
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        yield _counter("requests", "Requests that ended.", ("tier", "status", "stream"), self._requests)
        yield _counter("routes", "Requests by class of complexity and serving tier.", ("class", "tier"), self._routes)
        yield _counter("failures", "Requests that failed, by error code.", ("code",), _single(self._failures))
        yield _counter("tokens", "Tokens, by the engine's count.", ("tier", "kind"), self._tokens)
        yield _counter("events", "Events of answers that were written.", (), {(): self._events})
        yield _histogram("request_seconds", "From the request's arrival to the end of its answer.", self._seconds)
        yield _histogram("first_event_seconds", "From the request's arrival to the first piece of answer.", self._first)
        active = GaugeMetricFamily("tiergate_active_requests", "Requests being answered.")
        active.add_metric((), self._active)
        yield active
        for name in LANE_GAUGES:
            gauge = GaugeMetricFamily(f"tiergate_lane_{name}", f"Engine lane: {name}.", labels=("lane",))
            for lane, stats in self._lanes.items():
                gauge.add_metric((lane,), getattr(stats, name))
            yield gauge
        yield from _engines(self._lanes)
        for name in LANE_COUNTERS:
            counts = {(lane,): getattr(stats, name) for lane, stats in self._lanes.items()}
            yield _counter(f"lane_{name}", f"Engine lane: {name.replace('_', ' ')}.", ("lane",), counts)


def _engines(lanes: Mapping[str, Any]) -> Iterator[Metric]:
    """What runs each lane: facts as labels of a constant 1."""
    threads = GaugeMetricFamily(
        "tiergate_lane_threads",
        "Engine lane: compute threads of the native core, 0 where PyTorch runs it.",
        labels=("lane", "precision"),
    )
    kernels = GaugeMetricFamily(
        "tiergate_lane_kernel",
        "Engine lane: the level of instruction sets at which a kernel of the native core runs.",
        labels=("lane", "kernel", "level"),
    )
    for lane, stats in lanes.items():
        threads.add_metric((lane, stats.precision), stats.threads)
        for kernel, level in stats.kernels.items():
            kernels.add_metric((lane, kernel, level), 1)
    yield threads
    yield kernels


def _single(counts: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    return {(key,): count for key, count in counts.items()}


def _counter(name: str, text: str, labels: tuple[str, ...], counts: Mapping[Any, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"tiergate_{name}", text, labels=labels)
    for key, count in counts.items():
        family.add_metric(key, count)
    return family


def _histogram(name: str, text: str, times: Mapping[str, Times]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(f"tiergate_{name}", text, labels=("tier",))
    for tier, one in times.items():
        family.add_metric((tier,), one.cumulative(), one.total)
    return family
