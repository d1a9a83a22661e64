"""Any interleaving of adding, stepping and aborting: books always right, every answer the one it would be alone."""

from __future__ import annotations

import math
from functools import cache

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fakes.model import FakeRunner
from fakes.step_model import FakeStepRunner
from support.cores import Client, make_lane, request, run
from tiergate.engine import ThinkLimit
from tiergate.engine.batch import ForwardBatch
from tiergate.engine.core import EngineCore
from tiergate.engine.messages import Abort, Failed, Finished

VOCAB = 24
CURSED = 23
"""Whoever reads this token last gets NaN."""
STEM = tuple(7 * i % (VOCAB - 1) for i in range(18))
PROMPTS = tuple((*STEM[:length], 1 + i, 2 + i) for i, length in enumerate((0, 3, 8, 12, 16, 18, 18, 16)))
"""They share beginnings, so that a cached block often has several holders."""
MANNERS = (
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.9, "top_p": 0.7, "seed": 6, "presence_penalty": 0.5},
    {"think": ThinkLimit(closers=((3,), (4, 5)), openers=((2,),), open=True, hard=3, handoff=(6, 7))},
    {"forced": (8, 9, 10), "logprobs": 1},
    {"store": False, "salt": "b"},
)


def curse(batch: ForwardBatch, logits: torch.Tensor) -> None:
    for r, row in enumerate(batch.logit_rows.tolist()):
        if int(batch.token_ids[row]) == CURSED:
            logits[r, 0] = math.nan


def runner(blocks: int, kind: type[FakeRunner] = FakeStepRunner) -> FakeRunner:
    return kind(blocks=blocks, block_size=4, vocab=VOCAB, fault=curse)


@cache
def alone(prompt: int, manner: int, max_tokens: int) -> tuple[tuple[int, ...], str]:
    core = EngineCore([make_lane(runner(100, FakeRunner), max_batch_tokens=100)], seeds=lambda: 1)
    one = request("x", list(PROMPTS[prompt]), max_tokens=max_tokens, **MANNERS[manner])  # type: ignore[arg-type]
    heard = run(core, [one])["x"]
    return tuple(heard.ids), heard.end.code if isinstance(heard.end, Failed) else heard.finished.reason


class CoreMachine(RuleBasedStateMachine):
    """Two clients and two lanes, one of them too small for comfort; either may draw its tokens itself."""

    @initialize(
        blocks=st.integers(11, 20),
        budget=st.integers(3, 20),
        places=st.integers(1, 6),
        caching=st.booleans(),
        kinds=st.tuples(*(st.sampled_from((FakeRunner, FakeStepRunner)) for _ in "ab")),
    )
    def build(
        self, blocks: int, budget: int, places: int, caching: bool, kinds: tuple[type[FakeRunner], type[FakeRunner]]
    ) -> None:
        config = {"max_batch_tokens": budget, "max_sequences": places, "prefix_cache": caching}
        lanes = [
            make_lane(runner(size, kind), name=name, **config)
            for name, size, kind in zip("ab", (blocks, 60), kinds, strict=True)
        ]
        self.core = EngineCore(lanes, seeds=lambda: 1)
        self.clients = {b"one": Client(), b"two": Client()}
        self.asked: dict[tuple[bytes, str], tuple[int, int, int]] = {}
        self.count = 0
        self.aborted: set[tuple[bytes, str]] = set()

    @rule(
        client=st.sampled_from((b"one", b"two")),
        lane=st.sampled_from("ab"),
        prompt=st.integers(0, len(PROMPTS) - 1),
        manner=st.integers(0, len(MANNERS) - 1),
        max_tokens=st.integers(1, 18),
        priority=st.integers(-1, 1),
        copies=st.integers(1, 5),
    )
    def add(
        self, client: bytes, lane: str, prompt: int, manner: int, max_tokens: int, priority: int, copies: int
    ) -> None:
        for _ in range(copies):
            id = str(self.count)
            self.count += 1
            self.asked[client, id] = prompt, manner, max_tokens
            params = {"lane": lane, "max_tokens": max_tokens, "priority": priority, **MANNERS[manner]}
            self.core.add(client, request(id, list(PROMPTS[prompt]), **params))  # type: ignore[arg-type]

    @rule(count=st.integers(1, 6), wake=st.sampled_from((None, -1)))
    def step(self, count: int, wake: int | None) -> None:
        for _ in range(count):
            self.core.step(wake)
            self.core.check()
        self.hear()

    @rule(client=st.sampled_from((b"one", b"two")), id=st.integers(0, 20))
    def abort(self, client: bytes, id: int) -> None:
        self.core.abort(client, Abort(str(id)))
        if (client, str(id)) in self.asked:
            self.aborted.add((client, str(id)))

    @rule(client=st.sampled_from((b"one", b"two")))
    def leave(self, client: bytes) -> None:
        self.hear()
        self.core.drop(client)
        self.clients[client] = Client()
        self.asked = {key: value for key, value in self.asked.items() if key[0] != client}

    @invariant()
    def books_hold(self) -> None:
        self.core.check()

    def hear(self) -> None:
        for client, replies in self.core.take_replies().items():
            self.clients[client].hear(replies)

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for _ in range(5000):
            if not self.core.has_work:
                break
            self.core.step()
            self.core.check()
        assert not self.core.has_work
        self.hear()
        for (client, id), job in self.asked.items():
            heard = self.clients[client].heard[id]
            ids, end = alone(*job)
            if isinstance(heard.end, Finished) and heard.end.reason == "abort":
                assert (client, id) in self.aborted
                assert tuple(heard.ids) == ids[: len(heard.ids)]
            else:
                assert tuple(heard.ids) == ids
                assert (heard.failed.code if isinstance(heard.end, Failed) else heard.finished.reason) == end
        for stats in self.core.stats().lanes.values():
            assert (stats.active, stats.running, stats.waiting) == (0, 0, 0)
            assert stats.free + stats.cached == stats.blocks


TestCore = CoreMachine.TestCase
TestCore.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
