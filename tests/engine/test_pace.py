"""Steps planned by the time that they take, in simulated time on a machine that the lane has to get to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.timed_model import TimedRunner
from support.cores import CLIENT, Clock, make_lane, request
from tiergate.engine.core import EngineCore
from tiergate.engine.latency import LatencyModel, Shape, with_chunk
from tiergate.engine.messages import Finished, Tokens
from tiergate.engine.pace import LEAST_CHUNK, STRETCH, Pace, decoding_shape
from tiergate.engine.schedule import Running, Waiting


def machine(shape: Shape) -> float:
    """Seconds: some 3.4 ms to read the weights, 0.3 ms a row, and attention."""
    return 0.0034 + 0.0003 * shape.rows + 6e-7 * shape.context + 7e-8 * shape.pairs


@dataclass
class Lane:
    """A core on a timed model, and when each sequence heard of its tokens."""

    config: dict[str, object] = field(default_factory=dict)
    cost: Callable[[Shape], float] = machine
    clock: Clock = field(default_factory=Clock)
    heard: dict[str, list[float]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.runner = TimedRunner(self.clock, self.cost)
        settings = {"max_batch_tokens": 512, "max_sequences": 64, "drafting": False, **self.config}
        lane = make_lane(self.runner, clock=self.clock, **settings)  # type: ignore[arg-type]
        self.core = EngineCore([lane], seeds=lambda: 1)

    def add(self, id: str, prompt: int, answer: int) -> None:
        self.core.add(CLIENT, request(id, [2 + n % 60 for n in range(prompt)], max_tokens=answer, salt=id))

    def step(self) -> None:
        self.core.step(wake=-1)
        for reply in self.core.take_replies().get(CLIENT, []):
            if isinstance(reply, Tokens):
                self.heard.setdefault(reply.id, []).append(self.clock.now)
            else:
                assert isinstance(reply, Finished)
                self.ended.add(reply.id)

    def run_for(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until:
            if self.core.has_work:
                self.step()
            else:
                self.clock.now = until

    def gaps(self, ids: list[str], since: float, until: float) -> list[float]:
        """Seconds between what streams heard, sorted."""
        gaps = []
        for id in ids:
            times = [at for at in self.heard[id] if since <= at <= until]
            gaps += [later - earlier for earlier, later in pairwise(times)]
        return sorted(gaps)


def test_a_long_prompt_among_streams_leaves_them_their_pace() -> None:
    lane = Lane()
    streams = [str(n) for n in range(16)]
    for id in streams:
        lane.add(id, 100, 4000)
    lane.run_for(2.0)
    arrived = lane.clock.now
    lane.add("long", 8000, 10)
    while "long" not in lane.heard:
        lane.step()
    answered = lane.heard["long"][0]
    busy = lane.gaps(streams, arrived, answered)
    while "long" not in lane.ended:
        lane.step()
    over = lane.clock.now
    lane.run_for(3.0)
    quiet = lane.gaps(streams, over, lane.clock.now)
    assert busy[int(0.99 * len(busy))] <= 2 * quiet[int(0.99 * len(quiet))]
    alone = sum(machine(with_chunk(Shape(0), at, 500)) for at in range(0, 8000, 500))
    assert answered - arrived < 5 * alone, "the prompt must not starve either"


def test_a_prompt_is_not_taken_for_what_slows_everyone_down() -> None:
    """While it is computed, cached tokens become seven times as dear to read, for all: its chunks stay worth a step."""
    begun: list[Shape] = []

    def dearer(shape: Shape) -> float:
        if shape.pairs:
            begun.append(shape)
        return machine(shape) + 3.6e-6 * shape.context * min(1.0, max(0, len(begun) - 20) / 100)

    lane = Lane(cost=dearer)
    streams = [str(n) for n in range(16)]
    for id in streams:
        lane.add(id, 30, 4000)
    lane.run_for(2.0)
    begun.clear()
    lane.add("long", 8000, 10)
    while "long" not in lane.heard:
        lane.step()
    assert len(begun) < 800, "chunks stay small that cost little"


def test_prompts_keep_coming_and_all_are_answered_soon() -> None:
    """Prompts of 600 tokens among 8 streams: none waits for its first token longer than its share of work explains."""
    lane = Lane()
    for n in range(8):
        lane.add(f"stream {n}", 50, 4000)
    lane.run_for(1.0)
    asked: dict[str, float] = {}
    for n in range(30):
        asked[f"prompt {n}"] = lane.clock.now
        lane.add(f"prompt {n}", 600, 5)
        lane.run_for(0.6)
    lane.run_for(3.0)
    waits = [lane.heard[id][0] - at for id, at in asked.items()]
    assert max(waits) < 1.5


def test_without_streams_a_prompt_has_the_machine_to_itself() -> None:
    lane = Lane()
    lane.add("warm", 300, 5)
    lane.run_for(0.1)
    lane.runner.shapes.clear()
    lane.add("x", 5000, 2)
    while "x" not in lane.ended:
        lane.step()
    assert [shape.rows for shape in lane.runner.shapes[:9]] == [512] * 9


def test_calls_of_many_tokens_last_no_longer_than_streams_like() -> None:
    lane = Lane()
    lane.add("x", 100, 2000)
    lane.run_for(1.0)
    calls = lane.runner.calls[20:]
    assert max(calls) > 2
    assert max(lane.gaps(["x"], 0.2, lane.clock.now)) < 0.025


@pytest.mark.parametrize(("most", "running"), [(0.0, 40), (0.008, 15), (1e-6, 1)])
def test_no_more_are_let_in_than_decode_in_time(most: float, running: int) -> None:
    lane = Lane({"max_latency": most})
    lane.add("warm", 20, 40)
    lane.run_for(0.3)
    for n in range(40):
        lane.add(str(n), 20, 400)
    lane.run_for(1.0)
    stats = lane.core.stats().lanes["a"]
    assert stats.running == pytest.approx(running, abs=2)
    while len(lane.ended) < 41:
        lane.step()


def taught() -> LatencyModel:
    model = LatencyModel(23_040)
    for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) * 10:
        model.observe(Shape(rows, 100 * rows), machine(Shape(rows, 100 * rows)))
    return model


ROWS = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 400) | st.just(1)), max_size=20)


@given(ROWS, st.integers(0, 3), st.integers(20, 512), st.floats(0, 0.1), st.integers(0, 5))
@settings(max_examples=150)
def test_a_budget_serves_everyone_and_keeps_to_the_limit(
    rows: list[tuple[int, int]], queue: int, most: int, target: float, turn: int
) -> None:
    model = taught()
    running = [Running(n, 0, start, start + gap, 0, 0) for n, (start, gap) in enumerate(rows)]
    waiting = [Waiting(100 + n, 0, 50, 0, 0) for n in range(queue)]
    budget = Pace(model, target).budget(running, waiting, most, turn)
    assert len(running) <= budget <= most
    decoding = decoding_shape(running)
    prompts = [s for s in running if s.wanted - s.computed > 1]
    if not decoding.rows or not (prompts or waiting):
        assert budget == most
        return
    floor = decoding.rows + len(prompts) + LEAST_CHUNK[turn % len(LEAST_CHUNK)]
    if budget > floor:
        start = prompts[0].computed if prompts else 0
        limit = max(target, STRETCH[turn % len(STRETCH)] * model.predict(decoding))
        assert model.predict(with_chunk(decoding, start, budget - decoding.rows)) <= limit
    else:
        assert budget == min(most, floor)


def test_what_is_unknown_limits_nothing() -> None:
    pace = Pace(LatencyModel(1), 0.01, max_latency=0.001)
    running = [Running(0, 0, 10, 11, 1, 1), Running(1, 0, 0, 900, 0, 0)]
    assert pace.budget(running, (), 512, 0) == 512
    assert pace.places(running, (), 8) == 8
