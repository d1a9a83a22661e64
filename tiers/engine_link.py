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
FRAME_BYTES = 1 << 20
"""A frame is sent without waiting for more once it has as much."""
MOST_UNSENT = 1 << 26
"""Bytes that wait for an engine that takes nothing; beyond it new commands are refused."""
RETRY = 0.01
"""Seconds until an engine that took nothing is tried again."""
_READABLE = int(zmq.POLLIN)  # the flag itself is an enum, whose arithmetic takes longer than the question


class Link:
    """Sends commands and hands over replies. Callbacks run in the event loop, `on_lost` once at most.

    Commands of one turn of the event loop leave as one frame when it ends, because each frame wakes ZeroMQ's thread.

    A ZeroMQ socket is not read through awaitables here: a callback on its file descriptor takes every frame that is
    there, so that a frame costs one `recv` and one decode and no task or future. The descriptor is edge-triggered,
    so it must be drained to `EAGAIN`, and looked at again after each send.
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
        self._encode = msgspec.msgpack.Encoder().encode
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._decoder = msgspec.msgpack.Decoder(list[messages.Reply])
        self._open = True
        self.connected = False
        """Whether somebody has taken the connection; an engine that still loads has."""
        socket = self._socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        if address.startswith("tcp:"):  # half-open connections show only by silence
            socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15_000)
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        socket.connect(address)
        self._loop.add_reader(socket.FD, self._drain)
        self._loop.add_reader(self._monitor.FD, self._watch)
        # A descriptor speaks up only after its socket was once found empty.
        self._loop.call_soon(self._drain)
        self._loop.call_soon(self._watch)

    def send(self, commands: Sequence[messages.Command]) -> bool:
        """Send soon; false when the connection is closed or the engine does not take what is sent."""
        if not self._open or self._unsent_bytes > MOST_UNSENT:
            return False
        if not self._unsent:
            self._loop.call_soon(self._flush)
        for command in commands:
            encoded = self._encode(command)
            self._unsent.append(encoded)
            self._unsent_bytes += len(encoded)
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

    def _flush(self) -> None:
        while self._open and self._unsent:
            count, size = 0, 0
            while count < len(self._unsent) and size < FRAME_BYTES:
                size += len(self._unsent[count])
                count += 1
            try:
                self._socket.send(frame(self._unsent[:count]), zmq.NOBLOCK)
            except zmq.Again:
                self._loop.call_later(RETRY, self._flush)
                return
            del self._unsent[:count]
            self._unsent_bytes -= size
        if self._open and int(self._socket.getsockopt(zmq.EVENTS)) & _READABLE:
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        for _ in range(FRAMES_A_TURN):
            if not self._open:
                return
            try:
                received = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                replies = self._decoder.decode(received)
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
                event = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
                self.connected = event != zmq.EVENT_DISCONNECTED
                lost = lost or not self.connected
        if lost:
            self._drain()
            self._lose("the engine's connection broke")

    def _lose(self, reason: str) -> None:
        if self._open:
            self.close()
            self._on_lost(reason)


def frame(commands: Sequence[bytes]) -> bytes:
    """Encoded commands as one MessagePack array (its specification, formats fixarray, array 16 and array 32)."""
    count = len(commands)
    if count < 16:
        head = bytes((0x90 | count,))
    elif count < 1 << 16:
        head = b"\xdc" + count.to_bytes(2, "big")
    else:
        head = b"\xdd" + count.to_bytes(4, "big")
    return head + b"".join(commands)
