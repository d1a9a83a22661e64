"""What the gateway itself costs: CPU time of its process, a request and a streamed event, with a scripted engine.

CPU time, because wall-clock time on a machine that others use tells little. Everything that a real request meets is
on: key, classifier, route, template, tokenizer, ledger on SQLite, metrics, log. The gateway and a floor (uvicorn with
an app that sends constants) take turns, round after round; tables give medians and ranges.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from bench.http_load import Answer, load, post
from rich.console import Console
from rich.table import Table

from support.server import Server, free_port

HERE = Path(__file__).resolve().parent
TOKENS = 100
"""Of an answer, each its own event when it is streamed."""
PAUSE = 0.005
"""Seconds between the tokens of a stream."""
PROMPT = "Tell me, in a few plain sentences, how a lighthouse keeper spends the hours between dusk and dawn. " * 2

TITLES = {
    "request": f"Gateway, requests of {TOKENS} tokens answered whole, as fast as they go",
    "paced": f"Gateway, requests of {TOKENS} tokens answered whole, 50 a second",
    "event": f"Gateway, streams of {TOKENS} tokens, {1e3 * PAUSE:.0f} ms between tokens: an event each",
}
SETTINGS = """
data = "{folder}/data"
[models]
cache = "{cache}"
[engine]
address = "{address}"
[tenants.bench]
keys = ["sk-bench"]
day_tokens = 1_000_000_000_000
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of one benchmark."""

    rounds: int = 3
    requests: int = 4000
    streams: int = 128
    connections: int = 32
    paced: int = 300
    """Requests of the latency run, 50 a second."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run on one contender. Times in microseconds of CPU, but for `p50_ms`."""

    contender: str
    what: str
    cpu: float
    """Microseconds of CPU a request, or an event when they were streamed."""
    rate: float
    """Requests or events a second of wall clock, as it happened."""
    p50_ms: float
    memory_mb: float
    """Resident memory of the process afterwards."""


def bench(cache: Path, folder: Path, plan: Plan, console: Console) -> list[dict[str, Any]]:
    """`cache` holds the embedded models and `folder` is the one of the fast model. Returns one record a run."""
    measured = []
    for _ in range(plan.rounds):
        for contender in (tiergate, floor):
            for streamed in (False, True):
                with contender(cache, folder, streamed) as (port, pid):
                    measured += asyncio.run(_run(contender.__name__, streamed, port, psutil.Process(pid), plan))
    for what, title in TITLES.items():
        console.print(_table(title, [one for one in measured if one.what == what]))
    return [asdict(one) for one in measured]


@contextmanager
def tiergate(cache: Path, folder: Path, streamed: bool) -> Iterator[tuple[int, int]]:
    """A real `tiergate serve` joined to a scripted engine: its port and process id."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiergate-bench-")))
        address = f"ipc://{home / 'engine'}"
        steps = ("1", str(PAUSE)) if streamed else (str(TOKENS), "0")
        script = [str(HERE / "scripted_engine.py"), address, str(folder / "tokenizer.json"), *steps]
        stack.enter_context(_process(script))
        settings = SETTINGS.format(folder=home, cache=cache, address=address)
        server = stack.enter_context(Server(home, settings))
        yield server.port, server.process.pid


@contextmanager
def floor(cache: Path, folder: Path, streamed: bool) -> Iterator[tuple[int, int]]:
    """The floor: its port and process id."""
    port = free_port()
    text = "word " * 72
    with _process([str(HERE / "floor.py"), str(port), text, str(TOKENS + 3), str(PAUSE)]) as process:
        deadline = time.monotonic() + 30
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/")
                break
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield port, process.pid


@contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-P", *command], env=dict(os.environ), stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=30)


async def _run(contender: str, streamed: bool, port: int, process: psutil.Process, plan: Plan) -> list[Measured]:
    body: dict[str, Any] = {
        "model": "fast", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": TOKENS, "stream": streamed,
    }  # fmt: skip
    request = post("/v1/chat/completions", json.dumps(body).encode())
    await load(port, request, connections=4, count=4 if streamed else 100)  # warm up
    if streamed:
        return [await _measure(contender, "event", port, request, process, plan.streams, plan.streams // 4)]
    busy = await _measure(contender, "request", port, request, process, plan.requests, plan.connections)
    paced = await _measure(contender, "paced", port, request, process, plan.paced, 8, interval=0.02)
    return [busy, paced]


async def _measure(
    contender: str,
    what: str,
    port: int,
    request: bytes,
    process: psutil.Process,
    count: int,
    connections: int,
    interval: float = 0.0,
) -> Measured:
    before, began = _cpu(process), time.perf_counter()
    answers = await load(port, request, connections=connections, count=count, interval=interval)
    seconds = time.perf_counter() - began
    # What was put off, the books above all, belongs to the bill.
    await asyncio.sleep(0.1)
    cpu = _cpu(process) - before
    units = _units(what, answers)
    return Measured(
        contender,
        what,
        cpu=1e6 * cpu / units,
        rate=units / seconds,
        p50_ms=1e3 * statistics.median(one.seconds for one in answers),
        memory_mb=process.memory_info().rss / 1e6,
    )


def _units(what: str, answers: list[Answer]) -> int:
    """Requests, or the events of all streams, which must all be as long as the first."""
    if what != "event":
        return len(answers)
    if {one.events for one in answers} != {answers[0].events} or answers[0].events < TOKENS:
        raise RuntimeError(f"streams of unequal length: {sorted({one.events for one in answers})}")
    return sum(one.events for one in answers)


def _cpu(process: psutil.Process) -> float:
    """Seconds of CPU that the process has used. It has no children: its engine is another's."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _table(title: str, measured: list[Measured]) -> Table:
    table = Table(title=title, caption="medians of the rounds, ranges in brackets; each = a request or an event")
    for column in ("", "CPU µs each", "a second and core", "a second, seen", "request p50, ms", "memory, MB"):
        table.add_column(column, justify="left" if not column else "right")
    for contender in dict.fromkeys(one.contender for one in measured):
        runs = [one for one in measured if one.contender == contender]
        cpu = statistics.median(one.cpu for one in runs)
        table.add_row(
            contender,
            f"{cpu:.0f} [{min(one.cpu for one in runs):.0f}-{max(one.cpu for one in runs):.0f}]",
            f"{1e6 / cpu:.0f}" if cpu else "",
            f"{statistics.median(one.rate for one in runs):.0f}",
            f"{statistics.median(one.p50_ms for one in runs):.2f}",
            f"{statistics.median(one.memory_mb for one in runs):.0f}",
        )
    return table
