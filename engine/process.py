"""The engine process: `python -P -m tiergate.engine.process`, an `EngineConfig` as a line of JSON on standard input.

Its loop is plain: drain the inbox, let the core take a step, send each client its replies in one frame; with nothing to
do it sleeps in `poll`. It ends, with status 0, on SIGTERM or SIGINT, and when standard input ends: whoever starts it
keeps that open, so that no engine outlives its parent however that one died. With status 2 it says in one line on
standard error why it could not start.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from importlib import import_module

import msgspec
import torch
import zmq

from .batch import Runner
from .block_pool import keyed_digest
from .config import EngineConfig, LaneConfig
from .core import EngineCore
from .errors import EngineError
from .inbox import read_commands
from .lane import Lane
from .messages import Abort, Command, Generate, Inspect, Ready, Reply

OpenRunner = Callable[[LaneConfig, str], Runner]
Clock = Callable[[], float]

SEND_FRAMES = 1000
"""Frames a client may leave unread before it counts as gone: one a step, so seconds of output at least."""
DRAIN_FRAMES = 256
"""Frames read between two steps, so that a flood of them cannot hold up those who are being served."""
IDLE_SECONDS = 1.0
"""Longest sleep; clients' silence is noticed this much later."""

log = logging.getLogger(__name__)


class Server:
    """The socket and its clients around a core."""

    def __init__(self, router: zmq.Socket[bytes], core: EngineCore, *, client_timeout: float, clock: Clock) -> None:
        self._router = router
        self._core = core
        self._client_timeout = client_timeout
        self._clock = clock
        self._seen: dict[bytes, float] = {}
        """Known clients, by when they were last heard."""
        self._encode = msgspec.msgpack.Encoder().encode

    def run(self, stop: socket.socket, parent: int | None) -> None:
        """Serve until `stop` or the file descriptor `parent` becomes readable."""
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(stop, zmq.POLLIN)
        if parent is not None:
            poller.register(parent, zmq.POLLIN)
        while True:
            busy = self._core.has_work
            events = dict(poller.poll(0 if busy else int(IDLE_SECONDS * 1000)))
            if stop.fileno() in events or (parent is not None and parent in events):
                return
            if self._router in events:
                self._drain()
            self._forget_silent()
            if busy or self._core.has_work:
                self._core.step()
            elif not events:
                self._core.check()
            self._flush()

    def _drain(self) -> None:
        for _ in range(DRAIN_FRAMES):
            try:
                client, *parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            commands, faults = read_commands(parts[-1] if parts else b"")
            known = client in self._seen
            self._seen[client] = self._clock()
            if faults:
                self._send(client, list[Reply](faults))
            for command in commands:
                self._obey(client, command, known)
                known = True

    def _obey(self, client: bytes, command: Command, known: bool) -> None:
        if isinstance(command, Generate):
            self._core.add(client, command)
        elif isinstance(command, Abort):
            self._core.abort(client, command)
        elif isinstance(command, Inspect):
            self._send(client, [self._core.stats()])
        elif not known:
            self._send(client, [Ready(pid=os.getpid(), lanes=self._core.lanes)])

    def _forget_silent(self) -> None:
        oldest = self._clock() - self._client_timeout
        for client in [client for client, seen in self._seen.items() if seen < oldest]:
            log.warning("a client was silent for %g s, its sequences are aborted", self._client_timeout)
            self._forget(client)

    def _flush(self) -> None:
        for client, replies in self._core.take_replies().items():
            self._send(client, replies)

    def _send(self, client: bytes, replies: list[Reply]) -> None:
        """Never waits: a client that is gone, or has stopped reading, loses its sequences."""
        try:
            self._router.send_multipart((client, self._encode(replies)), zmq.NOBLOCK)
        except (zmq.Again, zmq.ZMQError) as why:
            log.warning("a client cannot be reached (%s), its sequences are aborted", why)
            self._forget(client)

    def _forget(self, client: bytes) -> None:
        self._seen.pop(client, None)
        self._core.drop(client)


def serve(
    config: EngineConfig,
    open_runner: OpenRunner,
    *,
    stop: socket.socket,
    parent: int | None = None,
    send_frames: int = SEND_FRAMES,
    clock: Clock = time.monotonic,
) -> None:
    """Bind, load, and serve until `stop` or `parent` is readable. Clients may send at once; `Ready` comes when loaded.

    Raises `EngineError` for a model or an address that cannot be used.
    """
    context = zmq.Context(io_threads=1)
    router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    router.linger = 0
    router.sndhwm = send_frames
    router.router_mandatory = True
    try:
        try:
            router.bind(config.address)
        except zmq.ZMQError as why:
            raise EngineError(f"cannot bind {config.address!r}: {why}") from why
        digest = keyed_digest(os.urandom(32))
        lanes = [Lane(lane, open_runner(lane, config.device), digest=digest, clock=clock) for lane in config.lanes]
        core = EngineCore(lanes, seeds=lambda: int.from_bytes(os.urandom(8), "little", signed=True))
        # Models live as long as the process: the collector need not look at them again.
        gc.collect()
        gc.freeze()
        with torch.inference_mode():
            Server(router, core, client_timeout=config.client_timeout, clock=clock).run(stop, parent)
    finally:
        router.close()
        context.term()


def open_torch_runner(config: LaneConfig, device: str) -> Runner:
    """The runner of `runners/torch.py`."""
    return import_module(".runners.torch", __package__).open(config, device)  # type: ignore[no-any-return]


def main(open_runner: OpenRunner = open_torch_runner) -> int:
    """Run an engine as this process; the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s engine %(levelname)s %(message)s")
    try:
        config = msgspec.json.decode(_first_line(sys.stdin.fileno()), type=EngineConfig)
    except msgspec.MsgspecError as why:
        print(f"tiergate engine: bad configuration: {why}", file=sys.stderr)
        return 2
    torch.set_num_threads(config.threads or len(os.sched_getaffinity(0)))
    stop = _signals()
    try:
        serve(config, open_runner, stop=stop, parent=sys.stdin.fileno())
    except EngineError as why:
        print(f"tiergate engine: {why}", file=sys.stderr)
        return 2
    return 0


def _first_line(file: int) -> bytes:
    """Read unbuffered, so that the end of the file can be polled for afterwards."""
    line = bytearray()
    while (byte := os.read(file, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


def _signals() -> socket.socket:
    """Becomes readable when the process is asked to end."""
    heard, woken = socket.socketpair()
    woken.setblocking(False)

    def on_signal(number: int, frame: object) -> None:
        woken.send(b"\0")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return heard


if __name__ == "__main__":
    sys.exit(main())
