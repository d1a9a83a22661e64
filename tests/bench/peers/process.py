"""A contender's process as its owner sees it: started, given jobs with a deadline, ended with all it started."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from .contenders import Contender
from .player import Heard
from .workload import Play, Request

WORKER = Path(__file__).with_name("worker.py")
GRACE = 20.0
"""Seconds to end in order."""


class ContenderError(Exception):
    """It died, answered with an error or was too slow; the message says which."""


class Process:
    """Ready when it is made. `cold_s` is the time from its start to the first token of a first request."""

    def __init__(self, contender: Contender, first: Request, cores: Sequence[int], log: Path, limit: float) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [str(contender.python), "-P", str(WORKER), contender.driver, json.dumps(dict(contender.options))]
        environment = {**os.environ, **contender.environment, "OMP_NUM_THREADS": str(len(cores)), "PYTHONPATH": ""}
        begin = time.perf_counter()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        os.sched_setaffinity(self._process.pid, cores)
        self._rest = b""
        try:
            self._send(asdict(first))
            ready = self._receive(limit)
        except ContenderError:
            self.kill()
            raise
        self.cold_s = time.perf_counter() - begin
        self.pids: list[int] = ready["pids"]

    @property
    def pid(self) -> int:
        return self._process.pid

    def play(self, play: Play, limit: float) -> dict[int, Heard]:
        """Raises ContenderError; after a time-out the process is of no more use."""
        self._send({"before": [asdict(one) for one in play.before], "requests": [asdict(one) for one in play.requests]})
        answer = self._receive(limit)
        if "error" in answer:
            raise ContenderError(answer["error"])
        return {int(key): Heard(**one) for key, one in answer["heard"].items()}

    def _send(self, job: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise ContenderError(self._last_words()) from error

    def _receive(self, limit: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise ContenderError(f"not done within {limit:.0f} s")
                data = os.read(self._process.stdout.fileno(), 1 << 20)
                if not data:
                    raise ContenderError(self._last_words())
                self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        status = self._process.wait(timeout=GRACE)
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        # The line that names an exception says more than whatever was printed last.
        named = [line for line in lines if "Error" in line.split(" ")[0] or "Error: " in line]
        return f"died with status {status}: {(named or lines or ['no word'])[-1][:200]}"

    def close(self) -> None:
        """Ends it in order, or by force."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=GRACE)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        """It and all that it started; all gone when this returns."""
        try:
            family = [*psutil.Process(self._process.pid).children(recursive=True), psutil.Process(self._process.pid)]
        except psutil.NoSuchProcess:
            family = []
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)
        # What a worker that died left behind is still of its session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        psutil.wait_procs(family, timeout=GRACE)
        self._process.wait(timeout=GRACE)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
