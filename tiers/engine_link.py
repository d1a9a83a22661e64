"""One connection to an engine: frames of messages over a ZeroMQ DEALER socket, read by the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from tiergate.engine import messages

FRAMES_A_TURN = 32
"""Frames read before other callbacks get their turn."""


class Link:
    """Sends commands and hands over replies. Callbacks run in the event loop, `on_lost` once at most.

    A ZeroMQ socket is not read through awaitables here: a callback on its file descriptor takes every frame that is
    there, so that a frame costs one `recv` and one decode and no task or future. The descriptor is edge-triggered,
    so it must be drained until it has nothing more, and looked at again after each send.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        on_replies: Callable[[list[messages.Reply]], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_replies = on_replies
        self._on_lost = on_lost
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[messages.Reply])
        self._open = True
        socket = self._socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        if address.startswith("tcp:"):  # half-open connections show only by silence
            socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15_000)
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        socket.connect(address)
        self._loop.add_reader(socket.FD, self._drain)
        self._loop.add_reader(self._monitor.FD, self._watch)
        # A descriptor speaks up only after its socket was once found empty.
        self._loop.call_soon(self._drain)
        self._loop.call_soon(self._watch)

    def send(self, commands: Sequence[messages.Command]) -> bool:
        """Queue one frame; false when the connection is closed or the engine does not take what is sent."""
        if not self._open:
            return False
        try:
            self._socket.send(self._encoder.encode(commands), zmq.NOBLOCK)
        except zmq.Again:
            return False
        if self._readable():
            self._loop.call_soon(self._drain)
        return True

    def close(self) -> None:
        """Idempotent. No callback runs after it."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._socket.FD)
        self._loop.remove_reader(self._monitor.FD)
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()

    def _readable(self) -> bool:
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _drain(self) -> None:
        for _ in range(FRAMES_A_TURN):
            # Asking costs less than the exception of a `recv` in vain, and re-arms the descriptor just as well.
            if not self._open or not self._readable():
                return
            frame = self._socket.recv(zmq.NOBLOCK)
            try:
                replies = self._decoder.decode(frame)
            except msgspec.DecodeError as error:
                self._lose(f"the engine sent what is not its protocol: {error}")
                return
            self._on_replies(replies)
        self._loop.call_soon(self._drain)

    def _watch(self) -> None:
        if not self._open:
            return
        lost = False
        with contextlib.suppress(zmq.Again):
            while True:
                recv_monitor_message(self._monitor, zmq.NOBLOCK)
                lost = True
        if lost:
            self._drain()
            self._lose("the engine's connection broke")

    def _lose(self, reason: str) -> None:
        if self._open:
            self.close()
            self._on_lost(reason)
