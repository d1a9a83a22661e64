"""The engine process: `python -P -m tiergate.engine.process`, an `EngineConfig` as a line of JSON on standard input.

Its loop is plain: drain the inbox, let the core take a step, send each client its replies in one frame; with nothing to
do it sleeps in `poll`. The socket's file descriptor goes along into the step, for a runner that draws many tokens in
one call to notice what comes in. It tells of changes only, so it is of use only once all that was there has been read.

The process ends, with status 0, on SIGTERM or SIGINT, and when standard input ends: whoever starts it keeps that open,
so that no engine outlives its parent however that one died. With status 2 it says in one line on standard error why it
could not start.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable

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
from .launch import REFUSED, REFUSES
from .messages import Abort, Command, Failed, Generate, Inspect, Ready, Reply
from .runners.choose import RunnerChooser
from .tiering.open import secret_of
from .validate import find_config_fault

OpenRunner = Callable[[LaneConfig, str], Runner]
Clock = Callable[[], float]

SEND_FRAMES = 1000
"""Frames a client may leave unread before it counts as gone: one a step, so seconds of output at least."""
DRAIN_FRAMES = 256
"""Frames read between two steps, so that a flood of them cannot hold up those who are being served."""
LARGEST_FRAME = 64 << 20
"""Bytes; the connection of a client that sends more is closed."""
IDLE_SECONDS = 1.0
"""Longest sleep; clients' silence is noticed this much later."""

log = logging.getLogger(__name__)


class Server:
    """The socket and its clients around a core.

    A client that was given up, for silence or for not reading, and then says `Hello` again is a new one: the `Ready` it
    gets, its second, tells it that its earlier sequences are gone.
    """

    def __init__(self, router: zmq.Socket[bytes], core: EngineCore, *, client_timeout: float, clock: Clock) -> None:
        self._router = router
        self._core = core
        self._client_timeout = client_timeout
        self._clock = clock
        self._seen: dict[bytes, float] = {}
        """Known clients, by when they were last heard."""
        self._greeted: set[bytes] = set()
        self._wake = int(router.get(zmq.FD))
        self._encode = msgspec.msgpack.Encoder().encode

    def run(self, stop: socket.socket, parent: int | None) -> None:
        """Serve until `stop` or the file descriptor `parent` becomes readable."""
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(stop, zmq.POLLIN)
        if parent is not None:
            poller.register(parent, zmq.POLLIN)
        audited = True
        while True:
            busy = self._core.has_work
            events = dict(poller.poll(0 if busy else int(IDLE_SECONDS * 1000)))
            if stop.fileno() in events or (parent is not None and parent in events):
                return
            drained = self._router not in events or self._drain()
            self._forget_silent()
            if busy or self._core.has_work:
                self._core.step(self._wake if drained else None)
                audited = False
            elif not events and not audited:
                self._core.audit()
                audited = True
            self.flush()

    def _drain(self) -> bool:
        """Read what is there, but not for ever; whether that was all."""
        for _ in range(DRAIN_FRAMES):
            try:
                client, *parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            commands, faults = read_commands(parts[-1] if parts else b"")
            self._seen[client] = self._clock()
            if faults:
                self._send(client, list[Reply](faults))
            for command in commands:
                self._obey(client, command)
        return False

    def _obey(self, client: bytes, command: Command) -> None:
        if isinstance(command, Generate):
            self._add(client, command)
        elif isinstance(command, Abort):
            self._core.abort(client, command)
        elif isinstance(command, Inspect):
            self._send(client, [self._core.stats()])
        elif client not in self._greeted:
            self._greeted.add(client)
            self._send(client, [Ready(pid=os.getpid(), lanes=self._core.lanes)])

    def _add(self, client: bytes, request: Generate) -> None:
        try:
            self._core.add(client, request)
        except Exception:  # a fault of ours that no check foresaw: it must not cost everyone else their answers
            log.exception("a request could not be taken")
            self._send(client, [Failed(id=request.id, code="internal", message="the engine failed on this request")])

    def _forget_silent(self) -> None:
        oldest = self._clock() - self._client_timeout
        for client in [client for client, seen in self._seen.items() if seen < oldest]:
            log.warning("a client was silent for %g s, its sequences are aborted", self._client_timeout)
            self._forget(client)

    def flush(self) -> None:
        """Send everybody what there is for them, a frame each."""
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
        self._greeted.discard(client)
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

    Raises `EngineError` for a configuration, an address or a model that cannot be used.
    """
    if fault := find_config_fault(config):
        raise EngineError(fault)
    if fault := find_address_fault(config.address):
        raise EngineError(f"cannot bind {config.address!r}: {fault}")
    context = zmq.Context(io_threads=1)
    router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    router.linger = 0
    router.sndhwm = send_frames
    router.router_mandatory = True
    router.maxmsgsize = LARGEST_FRAME
    try:
        try:
            router.bind(config.address)
        except zmq.ZMQError as why:
            raise EngineError(f"cannot bind {config.address!r}: {zmq.strerror(why.errno or 0)}") from why
        core = EngineCore(_open_lanes(config, open_runner, clock), seeds=_random_seed)
        # Models live as long as the process: the collector need not look at them again.
        gc.collect()
        gc.freeze()
        with torch.inference_mode():
            Server(router, core, client_timeout=config.client_timeout, clock=clock).run(stop, parent)
        core.close()
    finally:
        router.close()
        context.term()


def find_address_fault(address: str) -> str | None:
    """What ZeroMQ would take away by binding there, None if nothing: it unlinks whatever file an ipc path has."""
    path = address.removeprefix("ipc://")
    if path == address or path == "*":
        return None
    if not path.startswith("@"):
        try:
            if not stat.S_ISSOCK(os.stat(path).st_mode):
                return "there is a file that is no socket"
        except OSError:  # nothing is there, or binding says what is wrong
            return None
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect("\0" + path[1:] if path.startswith("@") else path)
        except BlockingIOError:  # its queue of connections is full
            pass
        except OSError:  # left behind by an engine that is gone
            return None
    return "address already in use"


def _random_seed() -> int:
    return int.from_bytes(os.urandom(8), "little", signed=True)


def _open_lanes(config: EngineConfig, open_runner: OpenRunner, clock: Clock) -> list[Lane]:
    secret = os.urandom(32)
    lanes = []
    for lane in config.lanes:
        try:
            runner = open_runner(lane, config.device)
            kept = secret_of(lane)
        except Exception as why:
            kind = "" if isinstance(why, EngineError) else f"{type(why).__name__}: "
            raise EngineError(f"lane {lane.name!r} cannot be opened: {kind}{why}") from why
        lanes.append(Lane(lane, runner, digest=keyed_digest(kept or secret), clock=clock))
    return lanes


def main(open_runner: OpenRunner | None = None) -> int:
    """Run an engine as this process; the exit status. `open_runner` is usually a `RunnerChooser`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s engine %(levelname)s %(message)s")
    try:
        config = msgspec.json.decode(_first_line(sys.stdin.fileno()), type=EngineConfig)
    except msgspec.MsgspecError as why:
        print(f"{REFUSES}bad configuration: {why}", file=sys.stderr)
        return REFUSED
    cores = len(os.sched_getaffinity(0))
    threads = min(config.threads or cores, cores)
    torch.set_num_threads(threads)
    stop = _signals()
    try:
        serve(config, open_runner or RunnerChooser(threads), stop=stop, parent=sys.stdin.fileno())
    except EngineError as why:
        print(f"{REFUSES}{' '.join(str(why).split())}", file=sys.stderr)
        return REFUSED
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
