"""Ten minutes of disorder on one engine process: `python -P tests/bench/soak.py FOLDER`.

Requests of every kind come and go at random on two lanes whose block pools are too small for them: long and short
prompts, shared prefixes, sampling, penalties, priorities, thinking limits, aborts in every state, nonsense. Now and
then all is let run out, and then must hold: no block is active, no sequence left, a fixed set of greedy prompts gives
the very tokens it gave at first, and memory and threads are what they were when everything had been used once. Exits
with 1 and a sentence when it does not.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.engine import make_prompts

from support.engine_socket import EngineSocket
from tiergate.engine import EngineConfig, LaneConfig, SamplingParams, ThinkLimit, launch
from tiergate.engine.messages import Abort, Failed, Finished, Generate, Tokens

LANES = ("one", "two")
GROWTH = 1.05
"""Memory may end at most this much above what it was after the first rounds."""
WARM_ROUNDS = 3


@dataclass
class Counts:
    finished: int = 0
    aborted: int = 0
    refused: int = 0
    tokens: int = 0


@dataclass
class Soak:
    """One client's view: what it asked for and still waits for."""

    socket: EngineSocket
    prompts: list[list[int]]
    vocab: int
    dice: random.Random
    counts: Counts = field(default_factory=Counts)
    pending: dict[str, int] = field(default_factory=dict)
    """By id: tokens after which it is aborted, 0 never."""
    seen: dict[str, int] = field(default_factory=dict)
    made: int = 0

    def request(self) -> Generate:
        dice = self.dice
        self.made += 1
        prompt = dice.choice(self.prompts)
        if dice.random() < 0.5:
            prompt = prompt[: dice.randint(1, len(prompt))]
        if dice.random() < 0.2:
            prompt = self.prompts[0] + prompt
        if dice.random() < 0.02:
            prompt = [*prompt, self.vocab + 5]
        sampling = SamplingParams(
            max_tokens=dice.choice((1, 2, 7, 30, 90, 200)),
            temperature=dice.choice((0.0, 0.0, 0.7, 1.0, 5.0)),
            top_p=dice.choice((1.0, 0.9, 0.3)),
            top_k=dice.choice((0, 0, 40)),
            min_p=dice.choice((0.0, 0.0, 0.05)),
            presence_penalty=dice.choice((0.0, 0.0, 0.0, 1.0)),
            logit_bias=dice.choice(({}, {}, {7: 3.0})),
            seed=dice.choice((None, 11)),
            logprobs=dice.choice((None, None, None, 3)),
            ignore_eos=dice.random() < 0.5,
        )
        think = None
        if dice.random() < 0.3:
            think = ThinkLimit(
                closers=((16,),), openers=((15,),), open=True, hard=dice.choice((0, 5, 40)), handoff=(5, 6, 7)
            )
        return Generate(
            id=f"s{self.made}",
            lane=dice.choice(LANES),
            token_ids=prompt,
            sampling=sampling,
            think=think,
            salt=dice.choice(("", "a", "b")),
            priority=dice.choice((0, 0, 0, 2)),
        )

    def add(self) -> None:
        request = self.request()
        self.pending[request.id] = self.dice.choice((0, 0, 0, 1, 3, 20))
        self.socket.send(request)
        if self.dice.random() < 0.05:
            self.socket.send(Abort(request.id))

    def listen(self) -> None:
        for reply in self.socket.receive():
            if isinstance(reply, Tokens):
                self.counts.tokens += len(reply.ids)
                seen = self.seen[reply.id] = self.seen.get(reply.id, 0) + len(reply.ids)
                if self.pending.get(reply.id, 0) and seen >= self.pending[reply.id]:
                    self.socket.send(Abort(reply.id))
            elif isinstance(reply, Finished | Failed):
                assert reply.id in self.pending, f"{reply.id} ended twice, or was never asked for"
                del self.pending[reply.id]
                self.seen.pop(reply.id, None)
                if isinstance(reply, Failed):
                    assert reply.code in ("invalid", "too_long"), reply
                    self.counts.refused += 1
                elif reply.reason == "abort":
                    self.counts.aborted += 1
                else:
                    self.counts.finished += 1

    def disorder(self, seconds: float, most: int) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            while len(self.pending) < self.dice.randint(1, most):
                self.add()
            self.listen()
        while self.pending:
            self.listen()

    def reference(self) -> list[list[int]]:
        """Greedy answers to a fixed set, on every lane, in company and with whatever the prefix cache holds by now."""
        sampling = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
        requests = [
            Generate(id=f"{lane}-{i}", lane=lane, token_ids=prompt, sampling=sampling)
            for lane in LANES
            for i, prompt in enumerate(self.prompts[:8])
        ]
        return [outcome.ids for outcome in self.socket.run(requests).values()]


def status(pid: int) -> tuple[float, int]:
    """Resident memory in MiB and threads of a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024, int(fields["Threads"])


def soak(folder: Path, seconds: float, precision: str, seed: int, lane_options: dict[str, object]) -> int:
    lanes = tuple(
        LaneConfig(name=name, model=str(folder), precision=precision, blocks=160, max_sequences=24, **lane_options)  # type: ignore[arg-type]
        for name in LANES
    )
    engine = launch(EngineConfig(lanes=lanes))
    try:
        socket = EngineSocket(engine.address)
        vocab = socket.wait_ready().lanes[LANES[0]].vocab
        run = Soak(socket, make_prompts(folder, 24), vocab, random.Random(seed))
        wanted = run.reference()
        end = time.monotonic() + seconds
        rounds, first, memory, threads = 0, 0.0, 0.0, set()
        while time.monotonic() < end:
            run.disorder(min(20.0, max(1.0, end - time.monotonic())), most=40)
            rounds += 1
            if run.reference() != wanted:
                print(f"round {rounds}: greedy answers have changed")
                return 1
            stats = socket.stats()
            for name, lane in stats.lanes.items():
                if lane.active or lane.running or lane.waiting or lane.free + lane.cached != lane.blocks:
                    print(f"round {rounds}: lane {name} is not at rest: {lane}")
                    return 1
            memory, count = status(engine.pid)
            if rounds == WARM_ROUNDS:
                first = memory
            if rounds >= WARM_ROUNDS:
                threads.add(count)
            preempted = sum(lane.preemptions for lane in stats.lanes.values())
            print(
                f"round {rounds}: {memory:.0f} MiB, {count} threads, {preempted} preemptions, {run.counts}", flush=True
            )
        if rounds > WARM_ROUNDS and memory > GROWTH * first:
            print(f"memory grew from {first:.0f} to {memory:.0f} MiB")
            return 1
        if len(threads) > 1:
            print(f"threads were {sorted(threads)}")
            return 1
        return 0
    finally:
        engine.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a Hugging Face style model folder")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    return soak(args.folder, args.seconds, args.precision, args.seed, {})


if __name__ == "__main__":
    sys.exit(main())
