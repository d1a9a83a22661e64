"""Benchmark worker: our own engine process, driven over its socket as a gateway drives it.

Reads one JSON job a line from stdin, `{"how": "together" | "one_at_a_time", "prompts", "new_tokens"}`, and writes
one JSON result a line: `{"seconds", "ttft": [seconds a request], "tokens"}`. Greedy, end-of-sequence ignored.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from typing import Any

import msgspec
import zmq

from tiergate.engine import EngineConfig, LaneConfig, SamplingParams, launch
from tiergate.engine.messages import Command, Failed, Finished, Generate, Hello, Ready, Reply, Tokens

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(list[Reply]).decode


class Client:
    """A plain blocking client of one engine."""

    def __init__(self, address: str) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.connect(address)
        self.jobs = 0

    def send(self, *commands: Command) -> None:
        self.socket.send(encode(list(commands)))

    def receive(self) -> Iterable[Reply]:
        if not self.socket.poll(600_000):
            raise TimeoutError("the engine said nothing for ten minutes")
        return decode(self.socket.recv())

    def wait_ready(self) -> None:
        self.send(Hello())
        while not any(isinstance(reply, Ready) for reply in self.receive()):
            pass

    def together(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        self.jobs += 1
        sampling = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
        names = {f"{self.jobs}-{i}": i for i in range(len(prompts))}
        begin = time.perf_counter()
        # A salt of its own keeps every job cold: no prompt is found in the prefix cache of an earlier round.
        salt = f"job-{self.jobs}"
        self.send(
            *(
                Generate(id=name, lane="bench", token_ids=prompts[i], sampling=sampling, salt=salt)
                for name, i in names.items()
            )
        )
        first: dict[str, float] = {}
        tokens, open_names = 0, set(names)
        while open_names:
            now = None
            for reply in self.receive():
                now = now or time.perf_counter()
                if isinstance(reply, Tokens):
                    tokens += len(reply.ids)
                    first.setdefault(reply.id, now - begin)
                elif isinstance(reply, Finished):
                    open_names.discard(reply.id)
                elif isinstance(reply, Failed):
                    raise RuntimeError(reply.message)
        return {"seconds": time.perf_counter() - begin, "ttft": list(first.values()), "tokens": tokens}

    def one_at_a_time(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        parts = []
        begin = time.perf_counter()
        for prompt in prompts:
            waited = time.perf_counter() - begin
            part = self.together([prompt], new_tokens)
            parts.append({**part, "ttft": [waited + part["ttft"][0]]})
        return {
            "seconds": time.perf_counter() - begin,
            "ttft": [p["ttft"][0] for p in parts],
            "tokens": sum(p["tokens"] for p in parts),
        }


def main() -> None:
    folder = sys.argv[1]
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine = launch(EngineConfig(lanes=(LaneConfig(name="bench", model=folder, precision="bf16"),)))
    try:
        client = Client(engine.address)
        client.wait_ready()
        print(json.dumps({"ready": True}), file=results)
        for line in sys.stdin:
            job = json.loads(line)
            run = client.together if job["how"] == "together" else client.one_at_a_time
            try:
                result = run(job["prompts"], job["new_tokens"])
            except Exception as error:
                result = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(result), file=results)
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
