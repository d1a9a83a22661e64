"""llama.cpp's own server and scheduler, asked over HTTP with token ids; each request streams on its own connection."""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import Any

from bench.peers.player import Event

SLOTS = 64
HEAD = (
    b"POST /completion HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n"
)
START = 120.0
"""Seconds until the server must answer."""


@dataclass(slots=True)
class Stream:
    """One answer as it arrives."""

    key: int
    rest: bytes = b""
    """The beginning of a line."""


class LlamaServer:
    """`cells` KV cells are shared by all slots."""

    def __init__(self, binary: str, model: str, threads: int, cells: int, flags: list[str]) -> None:
        self._port = _free_port()
        command = [binary, "--model", model, "--threads", str(threads), "--threads-batch", str(threads)]
        command += ["--host", "127.0.0.1", "--port", str(self._port), "--parallel", str(SLOTS), "--no-ui"]
        command += ["--ctx-size", str(cells), "--offline", *flags]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.pids = [self._process.pid]
        self._selector = selectors.DefaultSelector()
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START
        while not self._healthy():
            if self._process.poll() is not None:
                raise RuntimeError(f"llama-server ended with status {self._process.returncode}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"llama-server did not answer within {START:.0f} s")
            time.sleep(0.01)

    def _healthy(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                return connection.recv(64).startswith(b"HTTP/1.1 200")
        except OSError:
            return False

    def add(self, key: int, prompt: list[int], new_tokens: int) -> None:
        body = json.dumps(
            {
                "prompt": prompt,
                "n_predict": new_tokens,
                "ignore_eos": True,
                "temperature": 0.0,
                "samplers": ["top_k"],
                "top_k": 1,
                "stream": True,
                "return_tokens": True,
                "cache_prompt": True,
            }
        ).encode()
        connection = socket.create_connection(("127.0.0.1", self._port))
        connection.sendall(HEAD % len(body) + body)
        self._selector.register(connection, selectors.EVENT_READ, Stream(key))

    def step(self) -> list[Event]:
        ready = self._selector.select(timeout=1.0)
        if not ready and self._process.poll() is not None:
            raise RuntimeError(f"llama-server ended with status {self._process.returncode}")
        events = []
        for key, _ in ready:
            connection, stream = key.fileobj, key.data
            assert isinstance(connection, socket.socket)
            data = connection.recv(65536)
            now = time.perf_counter()
            ids = _new_ids(stream, data)
            if ids:
                events.append(Event(stream.key, ids, now))
            if not data:
                self._selector.unregister(connection)
                connection.close()
        return events

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)


def _new_ids(stream: Stream, data: bytes) -> list[int]:
    """Ids in the events that `data` completes. The frames of HTTP's chunks are lines of their own."""
    *lines, stream.rest = (stream.rest + data).split(b"\n")
    ids: list[int] = []
    for line in lines:
        if line.startswith((b"error: ", b'{"error"')):
            raise RuntimeError(line.decode(errors="replace"))
        if line.startswith(b"data: {"):
            event: dict[str, Any] = json.loads(line[6:])
            if not event.get("stop"):
                ids += event["tokens"]
    return ids


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def open_driver(binary: str, model: str, threads: int, cells: int, flags: list[str]) -> LlamaServer:
    return LlamaServer(binary, model, threads, cells, flags)
