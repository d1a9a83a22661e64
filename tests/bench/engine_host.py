"""`make bench`: what a decode step costs in Python, all but the runner's own call.

Thread CPU time of planning, laying out, taking the drawn tokens, encoding and sending them, on a runner that does
nothing but name a token for each row. A real one also reads its weights, and leaves the caches without a trace of
Python: so everything is measured a second time with 32 MB read in each call. The floor beside it is the work that no
engine is spared: one msgpack frame of as many tokens, encoded and sent on the same socket.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import zmq
from rich.console import Console
from rich.table import Table

from tiergate.engine import LaneConfig, ThinkLimit
from tiergate.engine.batch import ModelFacts
from tiergate.engine.block_pool import keyed_digest
from tiergate.engine.core import EngineCore
from tiergate.engine.lane import Lane
from tiergate.engine.messages import Generate, SamplingParams, Tokens
from tiergate.engine.process import Server
from tiergate.engine.step_buffers import StepBuffers

TARGETS = {8: 60.0, 32: 150.0}
"""Microseconds a step of so many rows may cost."""
VOCAB = 49_152
STEPS = 40
"""In a batch. Of each batch the mean is taken, and of the batches the median."""
COLD = 32 << 20
"""Bytes read in a call that is to leave cold caches."""


@dataclass(slots=True)
class NullStep:
    """Draws some tokens or other, at once."""

    buffers: StepBuffers
    noise: npt.NDArray[np.int32] = field(
        default_factory=lambda: np.random.default_rng(0).integers(10, VOCAB, 1 << 16).astype(np.int32)
    )
    weights: npt.NDArray[np.float64] = field(default_factory=lambda: np.ones(0))
    """Read in each call."""
    at: int = 0
    seconds: float = 0.0
    """Thread CPU time spent in here, which is not the host's."""

    def __call__(self, *, tokens: int, sequences: int, rows: int, repeat: int, wake: int) -> int:
        began = time.thread_time()
        self.weights.sum()
        count = repeat * rows
        self.at = (self.at + count) % (len(self.noise) - 512)
        self.buffers.chosen["token"][:count] = self.noise[self.at : self.at + count]
        self.seconds += time.thread_time() - began
        return repeat


class NullRunner:
    """A `StepRunner` that computes nothing."""

    def __init__(self, blocks: int) -> None:
        self.facts = ModelFacts(vocab=VOCAB, context=8192, eos=(0,), kv_bytes_per_token=1)
        self.blocks, self.block_size = blocks, 16
        self.step: NullStep | None = None

    def forward(self, batch: Any) -> Any:
        raise NotImplementedError("this runner draws its tokens itself")

    def bind(self, buffers: StepBuffers) -> NullStep:
        self.step = NullStep(buffers)
        return self.step


def bench(console: Console, batches: int = 20) -> list[dict[str, Any]]:
    """Measure steps of several numbers of rows, and print a table."""
    records = [
        {"rows": rows, "kind": kind, "repeat": repeat, "cold": cold, **measure(rows, kind, repeat, cold, batches)}
        for rows in (1, 8, 32)
        for kind in KINDS
        for repeat in (False, True)
        for cold in (False, True)
    ]
    table = Table("rows", "sequences", "caches", "tokens a call", "us a call", "floor", "target", title="Host cost")
    for record in records:
        usual = not record["repeat"] and not record["cold"] and record["kind"] == "plain"
        table.add_row(
            str(record["rows"]),
            record["kind"],
            "cold" if record["cold"] else "warm",
            f"{record['tokens']:.1f}",
            f"{record['us']:.0f}",
            f"{record['floor']:.0f}",
            str(TARGETS.get(record["rows"], "")) if usual else "",
        )
    console.print(table)
    return records


KINDS = {
    "plain": {},
    "thinking": {"think": ThinkLimit(closers=((2,),), openers=((3,),), open=True, hard=1 << 20, soft=1 << 20)},
    "penalised": {"penalty": 0.1},
}


def measure(rows: int, kind: str, repeat: bool, cold: bool, batches: int) -> dict[str, float]:
    """Microseconds a call of the runner, floor, and tokens of a sequence a call."""
    runner = NullRunner(blocks=rows * 512 + 16)
    config = LaneConfig(name="a", model="none", max_sequences=rows, max_batch_tokens=512)
    core = EngineCore([Lane(config, runner, digest=keyed_digest(b"bench"), clock=time.monotonic)], seeds=lambda: 1)
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    address = f"ipc://{tempfile.mkdtemp()}/engine"
    try:
        router.router_mandatory = True
        router.bind(address)
        dealer.connect(address)
        dealer.send(msgspec.msgpack.encode([{"type": "hello"}]))
        client = router.recv_multipart()[0]
        server = Server(router, core, client_timeout=1e9, clock=time.monotonic)
        for number in range(rows):
            core.add(client, _request(str(number), **KINDS[kind]))
        wake = router.get(zmq.FD) if repeat else None
        assert runner.step is not None
        if cold:
            runner.step.weights = np.ones(COLD // 8)
        return _time(core, server, router, dealer, runner.step, client, wake, batches)
    finally:
        dealer.close(0)
        router.close(0)
        context.term()
        os.unlink(address.removeprefix("ipc://"))
        os.rmdir(os.path.dirname(address.removeprefix("ipc://")))


def _request(id: str, penalty: float = 0.0, think: ThinkLimit | None = None) -> Generate:
    sampling = SamplingParams(max_tokens=8000, temperature=0.7, top_p=0.9, presence_penalty=penalty)
    return Generate(id=f"request-{id}", lane="a", token_ids=list(range(10, 110)), sampling=sampling, think=think)


def _time(
    core: EngineCore,
    server: Server,
    router: Any,
    dealer: Any,
    step: NullStep,
    client: bytes,
    wake: int | None,
    batches: int,
) -> dict[str, float]:
    for _ in range(20):  # prompts, and what is slow only once
        core.step(wake)
        server.flush()
    encode = msgspec.msgpack.Encoder().encode
    costs, floors = [], []
    made = core.stats().lanes["a"].generated_tokens
    running = core.stats().lanes["a"].running
    for _ in range(batches):
        spent, began = step.seconds, time.thread_time()
        for _ in range(STEPS):
            core.step(wake)
            server.flush()
        costs.append((time.thread_time() - began - (step.seconds - spent)) / STEPS)
        began = time.thread_time()
        for _ in range(STEPS):
            frame = encode([Tokens(f"request-{number}", [1]) for number in range(running)])
            router.send_multipart((client, frame), zmq.NOBLOCK)
        floors.append((time.thread_time() - began) / STEPS)
        while dealer.poll(20):
            dealer.recv()
    tokens = (core.stats().lanes["a"].generated_tokens - made) / (batches * STEPS * running)
    return {"us": 1e6 * statistics.median(costs), "floor": 1e6 * statistics.median(floors), "tokens": tokens}


if __name__ == "__main__":
    bench(Console(width=120))
