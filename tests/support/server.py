"""A real `tiergate serve` in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """Starts on entry, waits for `/ready`, stops on exit. `settings` is the text of a TOML file."""

    def __init__(self, folder: Path, settings: str, patience: float = 120.0) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.patience = patience
        self.log = folder / "server.log"
        self.start_seconds = 0.0
        """From the start of the process to ready."""
        (folder / "tiergate.toml").write_text(settings)

    def __enter__(self) -> Server:
        command = [str(Path(sys.executable).parent / "tiergate"), "serve", "--port", str(self.port)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env=dict(os.environ))
        try:
            self.start_seconds = self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> int:
        """SIGTERM, then the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def wait_ready(self) -> float:
        """Seconds until `/ready` answered 200."""
        begin = time.monotonic()
        while time.monotonic() - begin < self.patience:
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/ready", timeout=5).status_code == 200:
                    return time.monotonic() - begin
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"not ready; log:\n{self.log.read_text()}")

    def metrics(self) -> dict[tuple[str, str], float]:
        """(name, value of the `tier` or `lane` label or "") to value, summed over all other labels."""
        found: dict[tuple[str, str], float] = {}
        for family in text_string_to_metric_families(httpx.get(f"{self.url}/metrics", timeout=30).text):
            for sample in family.samples:
                key = (sample.name, sample.labels.get("tier", sample.labels.get("lane", "")))
                found[key] = found.get(key, 0.0) + sample.value
        return found

    def engine(self) -> psutil.Process:
        """The engine process it started."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if "tiergate.engine.process" in " ".join(child.cmdline()):
                return child
        raise AssertionError("no engine process")
