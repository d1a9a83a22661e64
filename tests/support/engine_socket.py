"""A plain blocking client of one engine process, for tests and benchmarks that want no gateway in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import zmq

from tiergate.engine.messages import Command, Failed, Finished, Generate, Hello, Inspect, Ready, Reply, Stats, Tokens

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(list[Reply]).decode


HEARTBEAT = 3.0
"""Seconds."""


@dataclass
class Outcome:
    """Everything an engine said of one sequence; times in seconds since the batch was sent."""

    ids: list[int] = field(default_factory=list)
    first_at: float = 0.0
    end: Finished | Failed | None = None

    @property
    def finished(self) -> Finished:
        assert isinstance(self.end, Finished), self.end
        return self.end


class EngineSocket:
    """One DEALER socket."""

    def __init__(self, address: str, patience: float = 600.0) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(address)
        self.patience = patience
        self.spoke = 0.0

    def send(self, *commands: Command) -> None:
        self.spoke = time.monotonic()
        self.socket.send(encode(list(commands)))

    def receive(self) -> Iterable[Reply]:
        """The next frame. Says `Hello` every few seconds, because a silent client's work is aborted."""
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            if time.monotonic() - self.spoke > HEARTBEAT:
                self.send(Hello())
            if self.socket.poll(int(HEARTBEAT * 1000)):
                return decode(self.socket.recv())
        raise TimeoutError(f"the engine said nothing for {self.patience:.0f} s")

    def wait_ready(self) -> Ready:
        self.send(Hello())
        while True:
            for reply in self.receive():
                if isinstance(reply, Ready):
                    return reply

    def stats(self) -> Stats:
        self.send(Inspect())
        while True:
            for reply in self.receive():
                if isinstance(reply, Stats):
                    return reply

    def run(
        self, requests: Sequence[Generate], on_tokens: Callable[[str, int], None] | None = None
    ) -> dict[str, Outcome]:
        """Send all at once and wait for the last word on each. `on_tokens(id, tokens so far)` may send an `Abort`."""
        outcomes = {request.id: Outcome() for request in requests}
        begin = time.perf_counter()
        self.send(*requests)
        pending = set(outcomes)
        while pending:
            replies = self.receive()
            now = time.perf_counter() - begin
            for reply in replies:
                if isinstance(reply, Tokens):
                    outcome = outcomes[reply.id]
                    outcome.first_at = outcome.first_at or now
                    outcome.ids.extend(reply.ids)
                    if on_tokens is not None:
                        on_tokens(reply.id, len(outcome.ids))
                elif isinstance(reply, Finished | Failed):
                    outcomes[reply.id].end = reply
                    pending.discard(reply.id)
        return outcomes

    def close(self) -> None:
        self.socket.close()
