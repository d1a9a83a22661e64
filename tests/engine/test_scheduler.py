"""The scheduler with a block pool under it and no model above it."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from tiergate.engine import SamplingParams
from tiergate.engine.block_pool import BlockPool, Chain, PrefixRoot, keyed_digest
from tiergate.engine.latency import LatencyModel
from tiergate.engine.pace import Pace
from tiergate.engine.schedule import Chunk, StepPlan
from tiergate.engine.scheduler import Scheduler
from tiergate.engine.sequence import Sequence

SIZE = 2


def make_scheduler(blocks: int, *, budget: int = 8, places: int = 4) -> Scheduler:
    pool = BlockPool(blocks, SIZE, digest=keyed_digest(b"k"))
    pace = Pace(LatencyModel(1), itl_target=0.01)
    return Scheduler(pool, budget=budget, max_running=places, max_waiting=100, max_blocks=blocks, pace=pace)


def make_sequence(order: int, tokens: list[int], *, answer: int = 1, priority: int = 0) -> Sequence:
    return Sequence(
        client=b"",
        id=str(order),
        order=order,
        priority=priority,
        ids=array("q", tokens),
        prompt_tokens=len(tokens),
        sampling=SamplingParams(max_tokens=answer),
        seed=0,
        eos=(),
        stops=frozenset(),
        chain=Chain(PrefixRoot("", "")),
    )


JOBS = st.tuples(st.integers(0, 12), st.integers(1, 3), st.integers(1, 14), st.integers(-1, 1))
"""Tokens of the common stem, tokens of one's own, tokens of the answer, priority."""


@given(
    st.lists(JOBS, min_size=1, max_size=12),
    st.integers(15, 22),
    st.integers(3, 16),
    st.integers(1, 8),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_everyone_is_served_and_the_books_hold(
    jobs: list[tuple[int, int, int, int]], blocks: int, budget: int, places: int, ranked: bool
) -> None:
    """Prompts share a stem to different lengths, so that blocks change hands in every way that they can."""
    scheduler = make_scheduler(blocks, budget=budget, places=min(places, budget))
    for order, (stem, tail, answer, priority) in enumerate(jobs):
        tokens = [*range(stem), *(100 + order % 3 for _ in range(tail))]
        scheduler.add(make_sequence(order, tokens, answer=answer, priority=priority if ranked else 0))
    for _ in range(3000):
        if not scheduler.running + scheduler.waiting:
            break
        step = scheduler.begin()
        assert not step.impossible
        assert sum(work.length for work in step.work) <= budget
        scheduler.check()
        closing = [work.sequence for work in step.work if work.draws]
        for work in step.work:
            scheduler.advance(work.sequence, work.start + work.length)
        for sequence in closing:
            sequence.accept(50 + sequence.generated)
            if sequence.finish:
                scheduler.remove(sequence)
        scheduler.check()
    assert not scheduler.running + scheduler.waiting
    assert scheduler.pool.active == 0


@given(
    st.lists(JOBS, min_size=1, max_size=12),
    st.integers(15, 40),
    st.integers(3, 16),
    st.integers(1, 8),
    st.integers(1, 6),
    st.lists(st.integers(0, 2), min_size=1, max_size=8),
)
@settings(max_examples=150, deadline=None)
def test_carrying_on_is_what_a_plan_would_say(
    jobs: list[tuple[int, int, int, int]], blocks: int, budget: int, places: int, most: int, pauses: list[int]
) -> None:
    """Every step is planned both ways: where no plan is made, it would have been a token for each and nothing else."""
    scheduler = make_scheduler(blocks, budget=budget, places=min(places, budget))
    coming = [
        make_sequence(order, [*range(stem), *(100 + order % 3 for _ in range(tail))], answer=answer, priority=priority)
        for order, (stem, tail, answer, priority) in enumerate(jobs)
    ]
    carried = 0
    for number in range(3000):
        if coming and (pauses[number % len(pauses)] == 0 or not scheduler.running + scheduler.waiting):
            scheduler.add(coming.pop())
        if not scheduler.running + scheduler.waiting:
            break
        plan, _ = scheduler._plan()
        running = tuple(scheduler._running)
        alone = tuple(Chunk(s.order, s.computed, 1, int(s.computed == len(s.blocks) * SIZE)) for s in running)
        got = scheduler.carry_on(most)
        if got is None:
            decoding = all(s.wanted - s.computed == 1 for s in running)
            assert not decoding or plan != StepPlan(chunks=alone) or scheduler.waiting, "planned without need"
            step = scheduler.begin()
            done = [(work.sequence, work.start + work.length, work.draws) for work in step.work]
        else:
            assert plan == StepPlan(chunks=alone)
            rows, count = got
            assert rows.sequences == running
            assert 1 <= count <= most
            for _ in range(count - 1):
                for sequence in running:
                    sequence.take(60)
            rows.advance(count)
            carried += 1
            done = [(sequence, len(sequence.ids), 1) for sequence in running]
        scheduler.check()
        for sequence, computed, draws in done:
            if draws:
                sequence.take(60)
            scheduler.advance(sequence, computed)
            assert computed <= len(sequence.blocks) * SIZE
            if sequence.finish:
                scheduler.remove(sequence)
        if got is not None:
            assert rows.lengths.tolist() == [len(s.ids) for s in running]
            assert rows.context == sum(len(s.ids) for s in running)
            if scheduler.decodes(rows):
                rows.refresh(range(len(rows)))
        scheduler.check()
    assert not scheduler.running + scheduler.waiting
    if len(jobs) == 1 and jobs[0][2] > 1:
        assert carried
