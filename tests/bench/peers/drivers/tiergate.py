"""Our own engine, driven over its socket as a gateway drives it."""

from __future__ import annotations

import time
from typing import Any

from bench.peers.player import Event

from support.engine_socket import HEARTBEAT, EngineSocket, decode
from tiergate.engine import EngineConfig, LaneConfig, SamplingParams, launch
from tiergate.engine.messages import Failed, Generate, Hello, Ready, Tokens


class Tiergate:
    def __init__(self, model: str, threads: int, precision: Any) -> None:
        lane = LaneConfig(name="bench", model=model, precision=precision)
        self._engine = launch(EngineConfig(lanes=(lane,), threads=threads))
        self._socket = EngineSocket(self._engine.address)
        self._wait_ready()
        self.pids = [self._engine.pid]
        self._plays = 0

    def _wait_ready(self) -> None:
        self._socket.send(Hello())
        while not self._socket.socket.poll(1000):
            self._check_alive()
        assert any(isinstance(reply, Ready) for reply in decode(self._socket.socket.recv()))

    def _check_alive(self) -> None:
        if not self._engine.alive():
            raise RuntimeError(f"the engine ended: {self._engine.last_words()}")

    def add(self, key: int, prompt: list[int], new_tokens: int) -> None:
        self._plays += 1
        sampling = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
        self._socket.send(Generate(id=f"{key}-{self._plays}", lane="bench", token_ids=prompt, sampling=sampling))

    def step(self) -> list[Event]:
        if time.monotonic() - self._socket.spoke > HEARTBEAT:
            self._socket.send(Hello())
        if not self._socket.socket.poll(1000):
            self._check_alive()
            return []
        replies = decode(self._socket.socket.recv())
        now = time.perf_counter()
        for reply in replies:
            if isinstance(reply, Failed):
                raise RuntimeError(f"{reply.code}: {reply.message}")
        return [Event(int(one.id.split("-")[0]), one.ids, now) for one in replies if isinstance(one, Tokens)]

    def close(self) -> None:
        self._socket.close()
        self._engine.stop()


def open_driver(model: str, threads: int, precision: str) -> Tiergate:
    return Tiergate(model, threads, precision)
