"""A lane whose runner draws tokens itself: many in a call when it may, never one that would have been another."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.model import FakeRunner
from fakes.step_model import FakeStepRunner
from support.cores import CLIENT, Client, make_core, make_lane, naive_greedy, request, run
from tiergate.engine import ThinkLimit
from tiergate.engine.batch import ForwardBatch
from tiergate.engine.core import EngineCore
from tiergate.engine.native_step import MAX_REPEAT

PROMPT = [5, 6, 7, 8, 9]


def roomy(**settings: object) -> FakeStepRunner:
    return FakeStepRunner(blocks=400, eos=(), **settings)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_many_tokens_are_drawn_in_a_call() -> None:
    runner = roomy()
    heard = run(make_core(runner), [request(str(n), PROMPT[n:], max_tokens=50) for n in range(4)])
    assert [len(heard[str(n)].ids) for n in range(4)] == [50] * 4
    assert heard["0"].ids == naive_greedy(PROMPT, 50, eos=())
    assert len(runner.calls) <= 1 + -(-49 // MAX_REPEAT)
    assert max(done for _, _, done in runner.calls) == MAX_REPEAT


def test_no_step_is_done_in_vain() -> None:
    """A stop ends the call for all, so that none computes what is thrown away; nor does anyone pass its last token."""
    ids = naive_greedy(PROMPT, 30, eos=())
    stop = ids[9]
    runner = roomy()
    run(make_core(runner), [request("a", PROMPT, max_tokens=30, stop_token_ids=(stop,))])
    assert sum(done for _, _, done in runner.calls) == ids.index(stop) + 1
    runner = roomy()
    run(make_core(runner), [request("a", PROMPT, max_tokens=13)])
    assert sum(done for _, _, done in runner.calls) == 13


def test_a_call_ends_when_something_comes_in(pipe: tuple[int, int]) -> None:
    def ring(batch: ForwardBatch, logits: torch.Tensor) -> None:
        if len(runner.batches) == 4:
            os.write(pipe[1], b"x")

    runner = roomy(fault=ring)
    core = make_core(runner)
    core.add(CLIENT, request("a", PROMPT, max_tokens=40))
    core.step(pipe[0])
    core.step(pipe[0])
    assert [done for _, _, done in runner.calls] == [1, 3]
    core.step(pipe[0])
    assert runner.calls[-1][2] == 1
    os.read(pipe[0], 1)
    core.step(pipe[0])
    assert runner.calls[-1][2] == MAX_REPEAT


def test_one_token_at_a_time_unless_told_otherwise() -> None:
    runner = roomy()
    core = make_core(runner)
    core.add(CLIENT, request("a", PROMPT))
    while core.has_work:
        core.step()
    assert {repeat for _, repeat, _ in runner.calls} == {1}


def test_lanes_that_share_the_machine_take_one_step_a_turn() -> None:
    runners = [roomy(), roomy()]
    lanes = [make_lane(runner, name=name) for runner, name in zip(runners, "ab", strict=True)]
    core = EngineCore(lanes, seeds=lambda: 1)
    run(core, [request("a", PROMPT, max_tokens=20), request("b", PROMPT, lane="b", max_tokens=60)])
    assert {repeat for _, repeat, _ in runners[0].calls} == {1}
    assert max(repeat for _, repeat, _ in runners[1].calls) == MAX_REPEAT, "alone again"


def test_thinking_too_is_drawn_in_long_calls() -> None:
    think = ThinkLimit(closers=((61,),), openers=((62,),), open=True, hard=40, soft=40, handoff=(5, 6))
    runner = roomy(vocab=64)
    logits_runner = FakeRunner(blocks=400, eos=(), vocab=64)
    one = request("a", PROMPT, max_tokens=80, think=think, logit_bias={61: -100.0, 62: -100.0})
    heard = run(make_core(runner), [one])["a"]
    assert heard == run(make_core(logits_runner), [one])["a"]
    assert heard.finished.thinking_tokens == 40 + 3
    nearing = 40 - int(0.85 * 40)
    assert len(runner.calls) < nearing + 20


def test_penalties_and_log_probabilities_take_one_step_a_call() -> None:
    runner = roomy()
    run(make_core(runner), [request("a", PROMPT, frequency_penalty=1.0), request("b", PROMPT, logprobs=1)])
    assert {repeat for _, repeat, _ in runner.calls} == {1}


def test_a_failure_within_a_call_costs_nobody_a_token() -> None:
    failed: list[int] = []

    def fail_once(batch: ForwardBatch, logits: torch.Tensor) -> None:
        if len(runner.batches) == 6 and not failed:
            failed.append(1)
            raise RuntimeError("once")

    runner = roomy(fault=fail_once)
    heard = run(make_core(runner), [request(str(n), PROMPT[n:], max_tokens=30) for n in range(3)])
    assert failed
    for n in range(3):
        assert heard[str(n)].ids == naive_greedy(PROMPT[n:], 30, eos=())


@pytest.mark.parametrize("kind", [FakeRunner, FakeStepRunner])
@given(
    st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=20),
    st.sampled_from([{}, {"temperature": 1.0, "seed": 3}, {"logit_bias": {4: 2.0}}]),
    st.integers(8, 40),
    st.integers(2, 16),
)
@settings(max_examples=40, deadline=None)
def test_drafts_change_no_token(
    kind: type[FakeRunner], guesses: list[list[bool]], manner: dict[str, object], blocks: int, budget: int
) -> None:
    """Right guesses are kept and wrong ones leave no trace, neither in the answer nor in the prefix cache."""
    answers = {
        str(n): run(make_core(FakeRunner(blocks=400, eos=())), [request("x", PROMPT[n:], max_tokens=20, **manner)])["x"]
        for n in range(2)
    }
    lane = make_lane(kind(blocks=2 * blocks, eos=()), max_batch_tokens=budget, drafting=False)
    core = EngineCore([lane], seeds=lambda: 7)
    client = Client()
    for id in answers:
        core.add(CLIENT, request(id, PROMPT[int(id) :], max_tokens=20, **manner))  # type: ignore[arg-type]
    turn = 0
    while core.has_work:
        for sequence in lane._scheduler:
            if sequence.status == "running" and sequence.wanted - sequence.computed == 1:
                known = answers[sequence.id].ids[sequence.generated :][: sequence.draft_room]
                marks = guesses[turn % len(guesses)]
                sequence.drafts = tuple(t if right else (t + 1) % 64 for t, right in zip(known, marks, strict=False))
                lane._scheduler.break_off()
        core.step(wake=-1)
        core.check()
        turn += 1
        client.hear(core.take_replies().get(CLIENT, []))
    for id, alone in answers.items():
        assert client.heard[id].ids == alone.ids
    if all(all(marks) and marks for marks in guesses) and budget >= 16:
        assert turn < 20
    for id, alone in answers.items():
        again = [*PROMPT[int(id) :], *alone.ids]
        assert run(core, [request("again", again)])["again"].ids == naive_greedy(again, 12, eos=())
