"""What crosses the socket to an engine, frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from tiergate.engine import messages
from tiergate.tiers.engine_link import FRAME_BYTES, Link, frame


@given(st.lists(st.integers(0, 1 << 60), max_size=40))
def test_a_frame_is_a_list_of_its_commands(values: list[int]) -> None:
    assert frame([msgspec.msgpack.encode(value) for value in values]) == msgspec.msgpack.encode(values)


@pytest.mark.parametrize("count", [0, 15, 16, 65535, 65536])
def test_frames_of_every_format(count: int) -> None:
    assert frame([b"\x01"] * count) == msgspec.msgpack.encode([1] * count)


class Peer:
    """The engine's end of the socket, read by hand."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.address = f"ipc://{folder / 'engine'}"
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.bind(self.address)
        self.lost: list[str] = []

    def link(self) -> Link:
        return Link(self.context, self.address, lambda _: None, self.lost.append)

    async def frames(self, commands: int) -> list[list[messages.Command]]:
        """The next frames, until there were so many commands."""
        decoder = msgspec.msgpack.Decoder(list[messages.Command])
        found: list[list[messages.Command]] = []
        while sum(map(len, found)) < commands:
            if self.socket.poll(0):
                found.append(decoder.decode(self.socket.recv_multipart()[1]))
            else:
                await asyncio.sleep(0.002)
        return found


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    made = Peer(tmp_path)
    yield made
    made.context.destroy(linger=0)


async def test_commands_of_one_turn_leave_in_one_frame_and_in_order(peer: Peer) -> None:
    link = peer.link()
    sent = [messages.Abort(str(number)) for number in range(40)]
    assert all(link.send((command,)) for command in sent)
    assert await peer.frames(40) == [sent]
    assert link.send((messages.Hello(), messages.Inspect()))
    assert await peer.frames(2) == [[messages.Hello(), messages.Inspect()]]
    link.close()
    assert not link.send((messages.Hello(),))
    assert peer.lost == []


async def test_frames_have_a_bound(peer: Peer) -> None:
    link = peer.link()
    big = [messages.Abort("x" * (FRAME_BYTES // 2 + number)) for number in range(5)]
    assert link.send(big)
    assert await peer.frames(5) == [big[:2], big[2:4], big[4:]]
    link.close()


async def test_an_engine_that_takes_nothing_is_tried_again(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.setsockopt(zmq.SNDHWM, 1)  # of every socket that it makes
    address = f"ipc://{tmp_path / 'engine'}"
    link = Link(context, address, lambda _: None, lambda _: None)
    for number in range(3):
        assert link.send((messages.Abort(str(number)),))
        await asyncio.sleep(0.02)
    router = context.socket(zmq.ROUTER)
    router.bind(address)
    decoder = msgspec.msgpack.Decoder(list[messages.Command])
    got: list[messages.Command] = []
    while len(got) < 3:
        if router.poll(0):
            got += decoder.decode(router.recv_multipart()[1])
        await asyncio.sleep(0.002)
    assert got == [messages.Abort(str(number)) for number in range(3)]
    link.close()
    context.destroy(linger=0)
