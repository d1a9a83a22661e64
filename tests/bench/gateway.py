"""What the gateway itself costs: CPU time of its process, a request and a streamed event, with a scripted engine.

CPU time, because wall-clock time on a machine that others use tells little. Everything that a real request meets is
on: key, classifier, route, template, tokenizer, ledger on SQLite, metrics, log. The gateway and a floor (uvicorn with
an app that sends constants) take turns, round after round; tables give medians and ranges.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil
from bench.http_load import Answer, load, post
from rich.console import Console
from rich.table import Table

from support.server import Server, free_port
from tiergate.tiers.evaluation import TEXT

HERE = Path(__file__).resolve().parent
PAUSE = 0.005
"""Seconds of an engine step while answers are streamed. Otherwise steps take no time, so that the gateway is busy."""
WORDS = 40
"""Of a question, about 220 characters."""
SHORT, LONG, STREAM = 60, 260, 100
"""Tokens of answers: one of about 360 bytes, one to learn from what a further token costs, one to be streamed."""
OPEN = 32
"""Requests open at a time."""


@dataclass(frozen=True, slots=True)
class Work:
    """One way to load a contender. A step of the engine gives each open request a token, all in one frame."""

    title: str
    tokens: int
    connections: int = OPEN
    streamed: bool = False
    interval: float = 0.0
    """Seconds between the starts of two requests, all connections together."""


WORKS = {
    "request": Work(f"a request answered whole, {SHORT} tokens; {OPEN} open at a time, as fast as they go", SHORT),
    "long": Work(f"a request answered whole, {LONG} tokens; {OPEN} open at a time, as fast as they go", LONG),
    "alone": Work(f"a request answered whole, {SHORT} tokens; one at a time, as fast as they go", SHORT, 1),
    "paced": Work("a request answered whole, one token; 50 a second", 1, 8, interval=0.02),
    "event": Work(
        f"an event of a stream of {STREAM} tokens; {OPEN} open at a time, a token every {1e3 * PAUSE:.0f} ms",
        STREAM,
        streamed=True,
    ),
}
TOKEN = f"a further token of a whole answer: the difference of {LONG} and {SHORT} tokens"
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
    """Sizes of one benchmark: rounds, and how many requests each work is made of."""

    rounds: int = 3
    requests: int = 3000
    long: int = 1500
    alone: int = 400
    streams: int = 128
    paced: int = 100

    def count(self, what: str) -> int:
        return {
            "request": self.requests, "long": self.long, "alone": self.alone, "event": self.streams, "paced": self.paced
        }[what]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """One run on one contender. Times in microseconds of CPU, but for `p50_ms`."""

    contender: str
    what: str
    cpu: float
    """Microseconds of CPU a request, or an event when they were streamed, or a token."""
    rate: float
    """Requests or events a second of wall clock, as it happened."""
    p50_ms: float
    memory_mb: float
    """Resident memory of the process afterwards."""


def bench(cache: Path, folder: Path, plan: Plan, console: Console) -> list[dict[str, Any]]:
    """`cache` holds the embedded models and `folder` is the one of the fast model. Returns one record a run."""
    measured: list[Measured] = []
    for _ in range(plan.rounds):
        for contender in (tiergate, floor):
            for streamed in (False, True):
                with contender(cache, folder, streamed) as (port, pid):
                    measured += asyncio.run(_run(contender.__name__, streamed, port, psutil.Process(pid), plan))
            runs = {one.what: one for one in measured if one.contender == contender.__name__}
            measured.append(_token(runs["request"], runs["long"]))
    for what, title in {**{what: work.title for what, work in WORKS.items()}, "token": TOKEN}.items():
        console.print(_table(f"Gateway: {title}", [one for one in measured if one.what == what]))
    return [asdict(one) for one in measured]


def _token(short: Measured, long: Measured) -> Measured:
    """The slope between two lengths of answers of one round."""
    return replace(long, what="token", cpu=(long.cpu - short.cpu) / (LONG - SHORT), rate=long.rate * LONG)


@contextmanager
def tiergate(cache: Path, folder: Path, streamed: bool) -> Iterator[tuple[int, int]]:
    """A real `tiergate serve` joined to a scripted engine: its port and process id."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiergate-bench-")))
        address = f"ipc://{home / 'engine'}"
        step = str(PAUSE if streamed else 0)
        script = [str(HERE / "scripted_engine.py"), address, str(folder / "tokenizer.json"), "1", step]
        stack.enter_context(_process(script))
        settings = SETTINGS.format(folder=home, cache=cache, address=address)
        server = stack.enter_context(Server(home, settings))
        yield server.port, server.process.pid


@contextmanager
def floor(cache: Path, folder: Path, streamed: bool) -> Iterator[tuple[int, int]]:
    """The floor: its port and process id."""
    port = free_port()
    with _process([str(HERE / "floor.py"), str(port), "word " * 72, str(PAUSE)]) as process:
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
    await load(port, _requests(WORKS["request"]), connections=8, count=100)  # warm up
    return [
        await _measure(contender, what, port, process, plan.count(what))
        for what, work in WORKS.items()
        if work.streamed == streamed
    ]


def _requests(work: Work) -> list[bytes]:
    """Requests whose questions differ, more than any cache of prompts holds, so that it knows none of them again.

    Their words are drawn from prose, seldom ones as seldom as there.
    """
    prose, draw = TEXT.read_text(encoding="utf-8").split(), random.Random(0)
    questions = [f"Question {number}: {' '.join(draw.choices(prose, k=WORDS))}?" for number in range(2000)]
    return [
        post(
            "/v1/chat/completions",
            json.dumps(
                {
                    "model": "fast",
                    "messages": [{"role": "user", "content": question}],
                    "max_tokens": work.tokens,
                    "stream": work.streamed,
                }
            ).encode(),
        )
        for question in questions
    ]


async def _measure(contender: str, what: str, port: int, process: psutil.Process, count: int) -> Measured:
    work = WORKS[what]
    requests = _requests(work)
    before, began = _cpu(process), time.perf_counter()
    answers = await load(
        port,
        requests,
        connections=work.connections,
        count=count,
        interval=work.interval,
        # Streams begin and end at different times, as those of strangers do, not all in the same step.
        spread=work.tokens * PAUSE if work.streamed else 0.0,
    )
    seconds = time.perf_counter() - began
    # What was put off, the books above all, belongs to the bill.
    await asyncio.sleep(0.1)
    cpu = _cpu(process) - before
    units = _units(work, answers)
    return Measured(
        contender,
        what,
        cpu=1e6 * cpu / units,
        rate=units / seconds,
        p50_ms=1e3 * statistics.median(one.seconds for one in answers),
        memory_mb=process.memory_info().rss / 1e6,
    )


def _units(work: Work, answers: list[Answer]) -> int:
    """Requests, or the events of all streams, which must all be as long as the first."""
    if not work.streamed:
        return len(answers)
    if {one.events for one in answers} != {answers[0].events} or answers[0].events < work.tokens:
        raise RuntimeError(f"streams of unequal length: {sorted({one.events for one in answers})}")
    return sum(one.events for one in answers)


def _cpu(process: psutil.Process) -> float:
    """Seconds of CPU that the process has used, all threads. It has no children: its engine is another's.

    From the clock that the system keeps of it (clock_getcpuclockid(3) computes this id), not from ticks of 10 ms.
    """
    return time.clock_gettime((~process.pid << 3) | 2)


def _table(title: str, measured: list[Measured]) -> Table:
    table = Table(title=title, caption="medians of the rounds, ranges in brackets; each = what the title begins with")
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
