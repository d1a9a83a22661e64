"""Starts engine processes. Torch-free: the engine loads it, the gateway never does."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import IO

import msgspec

from .config import EngineConfig

LAST_LINES = 20
REFUSED = 2
"""Exit status of an engine that cannot start, however often it is tried."""
REFUSES = "tiergate engine: "
"""What stands before the one line on standard error that says why."""

_COMMAND = (sys.executable, "-P", "-m", "tiergate.engine.process")


class EngineProcess:
    """A running engine; `Ready` on its socket says when it has loaded. It ends with the process that owns it."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, folder: str) -> None:
        self.address = address
        """ZeroMQ endpoint."""
        self._process = process
        self._folder = folder
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        assert process.stderr is not None
        self._listener = threading.Thread(target=self._listen, args=(process.stderr,), daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return self._process.poll()

    def alive(self) -> bool:
        return self.returncode is None

    def last_words(self) -> str:
        """The latest lines of its standard error: why it died, for example. All but a refusal are passed on to ours."""
        if not self.alive():
            self._listener.join(1.0)
        return "\n".join(self._lines)

    def refusal(self) -> str:
        """Why it cannot start, once it has said so and ended with status 2; empty otherwise. May wait for a second."""
        if self.returncode != REFUSED:
            return ""
        *_, last = ["it does not say why", *self.last_words().splitlines()]
        return last.removeprefix(REFUSES)

    def stop(self, timeout: float = 5.0) -> None:
        """Ask it to end, kill it after `timeout` seconds, and clean up behind it. May be called again."""
        if self.alive():
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._listener.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _listen(self, stderr: IO[bytes]) -> None:
        with stderr:
            for line in stderr:
                text = line.decode(errors="replace").rstrip("\n")
                self._lines.append(text)
                if not text.startswith(REFUSES):  # its owner tells that
                    print(text, file=sys.stderr, flush=True)


def launch(config: EngineConfig, *, command: Sequence[str] = _COMMAND) -> EngineProcess:
    """Start an engine and return at once. Without an address it gets a private ipc path, removed by `stop`.

    `command` runs `process.main`, in this process's environment.
    """
    folder = tempfile.mkdtemp(prefix="tiergate-")  # mode 0700
    if not config.address:
        config = replace(config, address=f"ipc://{folder}/engine")
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment(), start_new_session=True
    )
    assert process.stdin is not None
    # A child that is dead already shows by its exit status.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(msgspec.json.encode(config) + b"\n")
        process.stdin.flush()
    return EngineProcess(process, config.address, folder)


def describe_kernels(device: str = "cpu") -> str:
    """What computes on this machine, in lines, for reports. The native core is compiled if it was not before.

    Asked of another interpreter, so that this one stays without torch; says what went wrong instead if that fails.
    """
    script = f"from tiergate.kernels import backend_report; print(backend_report({device!r}))"
    command = (sys.executable, "-P", "-c", script)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=_environment(), check=False
    )
    return done.stdout.strip() if done.returncode == 0 else f"not known: {done.stderr.strip()[-500:]}"


def _environment() -> dict[str, str]:
    """Ours, with OpenMP's threads told to spin for a moment only before they sleep.

    A decode step has hundreds of short parallel regions. On two cores, threads that never spun made it 1.6 times as
    long; threads that spun as long as by default took the core of whoever else was busy, a gateway for one, and then
    waited for each other: beside one busy neighbour a step took 14 times as long at the median. This many rounds cost
    a fifth or less in either case.
    """
    environment = dict(os.environ)
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", "5000")
    paths = [*_package_paths(), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def _package_paths() -> list[str]:
    """Where this process found the package, which may be nowhere that a new interpreter looks."""
    parents = (os.path.dirname(path) for path in sys.modules["tiergate"].__path__)
    return [path for path in parents if os.path.isdir(os.path.join(path, "tiergate"))]
