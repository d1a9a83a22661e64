"""Benchmark worker: our own engine process, driven over its socket as a gateway drives it.

Reads one JSON job a line from stdin, `{"how": "together" | "one_at_a_time", "prompts", "new_tokens"}`, and writes
one JSON result a line: `{"seconds", "ttft": [seconds a request], "tokens"}`. Greedy, end-of-sequence ignored.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.engine_socket import EngineSocket
from tiergate.engine import EngineConfig, LaneConfig, SamplingParams, launch
from tiergate.engine.messages import Generate


class Jobs:
    """Runs jobs on one engine. A salt of its own keeps each cold: nothing is found in an earlier round's cache."""

    def __init__(self, socket: EngineSocket) -> None:
        self.socket = socket
        self.count = 0

    def together(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        self.count += 1
        sampling = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
        begin = time.perf_counter()
        outcomes = self.socket.run(
            [
                Generate(id=f"{self.count}-{i}", lane="bench", token_ids=ids, sampling=sampling, salt=str(self.count))
                for i, ids in enumerate(prompts)
            ]
        )
        seconds = time.perf_counter() - begin
        tokens = sum(outcome.finished.completion_tokens for outcome in outcomes.values())
        return {"seconds": seconds, "ttft": [o.first_at for o in outcomes.values()], "tokens": tokens}

    def one_at_a_time(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        ttft, tokens = [], 0
        begin = time.perf_counter()
        for prompt in prompts:
            waited = time.perf_counter() - begin
            part = self.together([prompt], new_tokens)
            ttft.append(waited + part["ttft"][0])
            tokens += part["tokens"]
        return {"seconds": time.perf_counter() - begin, "ttft": ttft, "tokens": tokens}


def main() -> None:
    folder = sys.argv[1]
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine = launch(EngineConfig(lanes=(LaneConfig(name="bench", model=folder, precision="bf16"),)))
    try:
        socket = EngineSocket(engine.address)
        socket.wait_ready()
        jobs = Jobs(socket)
        print(json.dumps({"ready": True}), file=results)
        for line in sys.stdin:
            job = json.loads(line)
            run = jobs.together if job["how"] == "together" else jobs.one_at_a_time
            try:
                result = run(job["prompts"], job["new_tokens"])
            except Exception as error:
                result = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(result), file=results)
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
