"""The core on a fake model: the same tokens however the work is cut up, and nothing lost when things go wrong."""

from __future__ import annotations

import math
import sys
from functools import cache

import numpy as np
import pytest
import torch

from fakes.model import FakeRunner, naive_logits
from fakes.step_model import FakeStepRunner
from support import cores
from support.cores import CLIENT, Client, Heard, make_core, make_lane, naive_greedy, request, run
from tiergate.engine import ThinkLimit
from tiergate.engine.batch import ForwardBatch
from tiergate.engine.core import EngineCore
from tiergate.engine.messages import Abort, Failed, Finished, Generate, SamplingParams

RNG = np.random.default_rng(5)
STEM = RNG.integers(1, 64, size=13).tolist()
PROMPTS = [STEM[: RNG.integers(0, 14)] + RNG.integers(1, 64, size=RNG.integers(1, 20)).tolist() for _ in range(16)]
"""Sixteen prompts that share beginnings of many lengths."""

MANNERS = {
    "greedy": {},
    "seeded": {"temperature": 1.0, "seed": 3},
    "cut": {"temperature": 0.8, "top_p": 0.8, "top_k": 30, "min_p": 0.01, "seed": -9},
    "penalised": {"temperature": 1.2, "presence_penalty": 1.0, "repetition_penalty": 1.3, "seed": 4},
}
WAYS = {
    "roomy": {"runner": {"blocks": 400}, "max_batch_tokens": 512, "max_sequences": 16},
    "chunked": {"runner": {"blocks": 400}, "max_batch_tokens": 5, "max_sequences": 4},
    "tight": {"runner": {"blocks": 14}, "max_batch_tokens": 16, "max_sequences": 16},
    "tight without cache": {"runner": {"blocks": 14}, "max_sequences": 16, "prefix_cache": False},
    "one slot a block": {"runner": {"blocks": 60, "block_size": 1}, "max_batch_tokens": 9, "max_sequences": 6},
}


@pytest.fixture(autouse=True, params=[FakeRunner, FakeStepRunner], ids=["logits", "native"])
def _with_every_runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether tokens are drawn in Python or by the runner, many in a call, is not to be seen from outside."""
    for module in (sys.modules[__name__], cores):
        monkeypatch.setattr(module, "FakeRunner", request.param)


def core_of(way: str) -> EngineCore:
    settings = dict(WAYS[way])
    return make_core(FakeRunner(**settings.pop("runner")), **settings)  # type: ignore[arg-type]


def alone(one: Generate) -> Heard:
    return run(make_core(FakeRunner(blocks=400), max_batch_tokens=512), [one])[one.id]


@cache
def parts(manner: str) -> list[list[int]]:
    return [alone(request("x", prompt, **MANNERS[manner])).ids for prompt in PROMPTS]  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS)
def test_greedy_equals_recomputing_everything(way: str) -> None:
    core = core_of(way)
    heard = run(core, [request(str(i), prompt) for i, prompt in enumerate(PROMPTS)])
    for i, prompt in enumerate(PROMPTS):
        assert heard[str(i)].ids == naive_greedy(prompt, 12)
    again = run(core, [request(f"again {i}", prompt) for i, prompt in enumerate(PROMPTS)])
    assert [again[f"again {i}"].ids for i in range(16)] == [heard[str(i)].ids for i in range(16)]
    stats = core.stats().lanes["a"]
    assert stats.active == 0
    assert stats.free + stats.cached == stats.blocks
    if way.startswith("tight"):
        assert stats.preemptions > 0
    assert (stats.cached_tokens > 0) == (way != "tight without cache")


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_equals_its_parts(way: str, manner: str) -> None:
    requests = [request(str(i), prompt, **MANNERS[manner]) for i, prompt in enumerate(PROMPTS)]  # type: ignore[arg-type]
    together = run(core_of(way), requests)
    assert [together[one.id].ids for one in requests] == parts(manner)


def test_the_second_run_finds_its_prefix() -> None:
    core = make_core()
    prompt = PROMPTS[0] + STEM
    first = run(core, [request("1", prompt)])["1"]
    second = run(core, [request("2", prompt)])["2"]
    assert first.finished.cached_tokens == 0
    assert second.finished.cached_tokens == (len(prompt) - 1) // 4 * 4
    assert second.ids == first.ids


def test_an_answer_is_reused_by_the_next_turn() -> None:
    core = make_core(FakeRunner(eos=()))
    first = run(core, [request("1", STEM)])["1"]
    longer = [*STEM, *first.ids, 5, 6]
    assert run(core, [request("2", longer)])["2"].finished.cached_tokens == (len(STEM) + 11) // 4 * 4


def test_salts_and_unstored_sequences_share_nothing() -> None:
    core = make_core()
    run(core, [request("1", STEM, salt="a"), request("2", STEM, store=False)])
    heard = run(core, [request("3", STEM, salt="b"), request("4", STEM)])
    assert [heard[id].finished.cached_tokens for id in "34"] == [0, 0]
    assert core.stats().lanes["a"].cached > 0


def test_counts_of_a_preempted_sequence() -> None:
    core = core_of("tight")
    heard = run(core, [request(str(i), prompt) for i, prompt in enumerate(PROMPTS)])
    preempted = [one for one in heard.values() if one.finished.preemptions]
    assert preempted
    for i, prompt in enumerate(PROMPTS):
        finished = heard[str(i)].finished
        assert finished.prompt_tokens == len(prompt)
        assert finished.completion_tokens == len(heard[str(i)].ids)
        assert finished.cached_tokens < len(prompt)
    assert core.stats().lanes["a"].preemptions == sum(one.finished.preemptions for one in heard.values())


def test_higher_priority_ends_first() -> None:
    core = make_core(max_sequences=1)
    client = Client()
    for i in range(4):
        core.add(CLIENT, request(str(i), PROMPTS[i], priority=i % 2))
    order = []
    while core.has_work:
        core.step()
        replies = core.take_replies().get(CLIENT, [])
        client.hear(replies)
        order += [reply.id for reply in replies if isinstance(reply, Finished)]
    assert order == ["1", "3", "0", "2"]


def test_stops() -> None:
    ids = naive_greedy(STEM, 12, eos=())
    core = make_core(FakeRunner(eos=()))
    stop = ids[4]
    heard = run(core, [request("a", STEM, stop_token_ids=(stop,)), request("b", STEM)])
    assert heard["a"].ids == ids[: ids.index(stop) + 1]
    assert (heard["a"].finished.reason, heard["a"].finished.stop_id) == ("stop", stop)
    assert (heard["b"].finished.reason, heard["b"].finished.stop_id) == ("length", None)


def test_end_of_sequence_can_be_ignored_or_put_off() -> None:
    ids = naive_greedy(STEM, 12, eos=())
    core = make_core(FakeRunner(eos=(ids[2],)))
    heard = run(
        core,
        [request("ends", STEM), request("ignores", STEM, ignore_eos=True), request("later", STEM, min_tokens=6)],
    )
    assert heard["ends"].ids == ids[: ids.index(ids[2]) + 1]
    assert heard["ignores"].ids == ids
    assert len(heard["later"].ids) >= 6
    assert heard["later"].ids[:2] == ids[:2]
    assert ids[2] not in heard["later"].ids[:6]


def test_a_bias_forces_and_forbids() -> None:
    first = naive_greedy(STEM, 1)[0]
    heard = run(
        make_core(FakeRunner(eos=())),
        [
            request("ban", STEM, logit_bias={first: -100.0}),
            request("force", STEM, logit_bias={9: 100.0}, temperature=1.0),
        ],
    )
    assert heard["ban"].ids[0] == int(np.argsort(-naive_logits(STEM, 64))[1])
    assert first not in heard["ban"].ids
    assert heard["force"].ids == [9] * 12


def test_penalties_count_generated_tokens_only() -> None:
    core = make_core(FakeRunner(vocab=12, eos=()))
    prompt = list(range(1, 12))
    heard = run(core, [request("a", prompt, presence_penalty=100.0), request("b", prompt)])
    assert heard["a"].ids[0] == heard["b"].ids[0], "the prompt is not penalised"
    assert len(set(heard["a"].ids)) == 12, "nothing comes twice while something is left"


def test_frequency_penalty_grows_with_every_use() -> None:
    core = make_core(FakeRunner(vocab=6, eos=()))
    heard = run(core, [request("a", [1, 2], max_tokens=30, frequency_penalty=50.0)])
    assert np.bincount(heard["a"].ids, minlength=6).tolist() == [5] * 6


def test_log_probabilities_are_of_the_raw_logits() -> None:
    params = {"temperature": 0.3, "top_k": 2, "logit_bias": {5: 3.0}, "seed": 1}
    one = request("a", STEM, logprobs=3, forced=(7, 8), **params)  # type: ignore[arg-type]
    heard = run(make_core(FakeRunner(eos=())), [one])["a"]
    assert len(heard.logprobs) == len(heard.ids) == 12
    assert heard.ids[:2] == [7, 8]
    history = list(STEM)
    for token, entry in zip(heard.ids, heard.logprobs, strict=True):
        logits = naive_logits(history, 64).astype(np.float64)
        expected = logits - np.log(np.exp(logits).sum())
        assert entry.logprob == pytest.approx(expected[token], abs=1e-4)
        best = np.argsort(-expected)[:3]
        assert [id for id, _ in entry.top] == best.tolist()
        assert [value for _, value in entry.top] == pytest.approx(expected[best], abs=1e-4)
        history.append(token)


def test_log_probabilities_change_no_token() -> None:
    think = ThinkLimit(closers=((3,),), open=True, hard=4, handoff=(5, 6), after=(8,))
    for extra in ({}, {"temperature": 1.0, "seed": 4}):
        plain = alone(request("a", STEM, think=think, forced=(7,), **extra))  # type: ignore[arg-type]
        told = alone(request("a", STEM, think=think, forced=(7,), logprobs=0, **extra))  # type: ignore[arg-type]
        assert told.ids == plain.ids
        assert told.finished == plain.finished
        assert [entry.top for entry in told.logprobs] == [[]] * len(told.ids)


def test_the_log_probability_of_a_closer_put_in_for_the_end_is_its_own() -> None:
    ids = naive_greedy(STEM, 2, eos=())
    core = make_core(FakeRunner(eos=(ids[1],)))
    think = ThinkLimit(closers=((9,),), open=True)
    heard = run(core, [request("x", STEM, think=think, logprobs=0)])["x"]
    assert heard.ids[:2] == [ids[0], 9]
    logits = naive_logits([*STEM, ids[0]], 64).astype(np.float64)
    assert heard.logprobs[1].logprob == pytest.approx(logits[9] - np.log(np.exp(logits).sum()), abs=1e-4)


def test_forced_tokens_come_first_and_count() -> None:
    heard = run(make_core(), [request("a", STEM, forced=(5, 6, 7)), request("b", STEM, forced=(5, 0, 7))])
    assert heard["a"].ids == [5, 6, 7, *naive_greedy([*STEM, 5, 6, 7], 9)]
    assert heard["a"].finished.forced_tokens == 3
    assert heard["b"].ids == [5, 0]
    assert heard["b"].finished.stop_id == 0


def test_forced_tokens_alone_can_fill_the_answer() -> None:
    runner = FakeRunner()
    heard = run(make_core(runner), [request("a", STEM, forced=(5, 6, 7), max_tokens=2)])
    assert heard["a"].ids == [5, 6]
    assert heard["a"].finished.reason == "length"
    assert runner.batches == []


CLOSE = 3
THINK = ThinkLimit(closers=((CLOSE,),), open=True, hard=4, handoff=(5, 6), after=(8,))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"temperature": 1.0, "seed": 2},
        {"temperature": 5.0, "min_p": 0.0, "top_k": 1},
        {"logit_bias": {CLOSE: -100.0}},
        {"presence_penalty": 100.0, "repetition_penalty": 100.0},
        {"ignore_eos": True},
        {"min_tokens": 20},
        {"stop_token_ids": (5, 6, CLOSE, 8)},
        {"logprobs": 2},
    ],
    ids=str,
)
def test_the_thinking_limit_holds_whatever_the_sampling(way: str, extra: dict[str, object]) -> None:
    params = {"think": THINK, "max_tokens": 24, **extra}
    requests = [request(str(i), prompt, **params) for i, prompt in enumerate(PROMPTS)]  # type: ignore[arg-type]
    heard = run(core_of(way), requests)
    for one in heard.values():
        cut = one.ids.index(CLOSE)
        assert cut <= 4 + 2
        if cut == 6:
            assert one.ids[4:8] == [5, 6, CLOSE, 8]
        assert len(one.ids) > one.ids.index(CLOSE) + 1, "no answer"
        assert one.finished.thinking_tokens == cut + 1
        assert 0 not in one.ids[: cut + 2 + (one.ids[cut + 1] == 8)]


def test_a_soft_aim_shortens_thinking() -> None:
    def thought(soft: int | None) -> int:
        think = ThinkLimit(closers=((CLOSE,),), open=True, soft=soft)
        params = {"think": think, "max_tokens": 60, "temperature": 1.0, "seed": 1}
        requests = [request(str(i), prompt, **params) for i, prompt in enumerate(PROMPTS)]  # type: ignore[arg-type]
        heard = run(make_core(FakeRunner(blocks=400, vocab=400), max_sequences=16), requests)
        return sum(one.finished.thinking_tokens for one in heard.values())

    assert thought(10) < thought(20) < thought(None)


def test_seeds_are_picked_where_none_is_given() -> None:
    seeds = iter([1, 1, 2])
    core = EngineCore([make_lane(FakeRunner(eos=()))], seeds=lambda: next(seeds))
    heard = run(core, [request(id, STEM, temperature=2.0) for id in "abc"])
    assert heard["a"].ids == heard["b"].ids != heard["c"].ids


NAN = math.nan


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (request("x", []), "invalid"),
        (request("x", [64]), "invalid"),
        (request("x", [1, -1]), "invalid"),
        (request("x", [1 << 70]), "invalid"),
        (request("x", [1], forced=(99,)), "invalid"),
        (request("x", [1] * 200), "too_long"),
        (request("x", [1], max_tokens=10**18), "too_long"),
        (request("x", [1], max_tokens=0), "invalid"),
        (request("x", [1], max_tokens=-5), "invalid"),
        (request("x", [1], temperature=NAN), "invalid"),
        (request("x", [1], temperature=-0.1), "invalid"),
        (request("x", [1], temperature=math.inf), "invalid"),
        (request("x", [1], top_p=0.0), "invalid"),
        (request("x", [1], top_p=1.1), "invalid"),
        (request("x", [1], top_p=NAN), "invalid"),
        (request("x", [1], top_k=-1), "invalid"),
        (request("x", [1], top_k=1 << 63), "invalid"),
        (request("x", [1], max_tokens=1 << 64), "invalid"),
        (request("x", [1], min_tokens=1 << 63), "invalid"),
        (request("x", [1], min_p=-0.1), "invalid"),
        (request("x", [1], min_p=NAN), "invalid"),
        (request("x", [1], presence_penalty=1e308), "invalid"),
        (request("x", [1], frequency_penalty=NAN), "invalid"),
        (request("x", [1], repetition_penalty=0.0), "invalid"),
        (request("x", [1], repetition_penalty=-1.0), "invalid"),
        (request("x", [1], logit_bias={64: 1.0}), "invalid"),
        (request("x", [1], logit_bias={-1: 1.0}), "invalid"),
        (request("x", [1], logit_bias={1: NAN}), "invalid"),
        (request("x", [1], logit_bias=dict.fromkeys(range(5000), 1.0)), "invalid"),
        (request("x", [1], seed=1 << 63), "invalid"),
        (request("x", [1], stop_token_ids=(64,)), "invalid"),
        (request("x", [1], min_tokens=-1), "invalid"),
        (request("x", [1], logprobs=21), "invalid"),
        (request("x", [1], logprobs=-1), "invalid"),
        (request("x", [1], priority=1 << 64), "invalid"),
        (request("x", [1], think=ThinkLimit(closers=())), "invalid"),
        (request("x", [1], think=ThinkLimit(closers=((),))), "invalid"),
        (request("x", [1], think=ThinkLimit(closers=((1,),), hard=-1)), "invalid"),
        (request("x", [1], think=ThinkLimit(closers=((1,),), handoff=(64,))), "invalid"),
        (request("x", [1], think=ThinkLimit(closers=((1,),), handoff=(6,) * 2000)), "invalid"),
        (request("x", [1], think=ThinkLimit(closers=((1,) * 65,))), "invalid"),
        (request("x", [1], think=ThinkLimit(closers=((1,),), openers=((2,),) * 65)), "invalid"),
        (request("x", [1], lane="b"), "unknown_lane"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_bad_request_fails_alone(bad: Generate, code: str) -> None:
    core = make_core()
    heard = run(core, [request("good", STEM), bad])
    assert heard["x"].failed.code == code
    assert heard["x"].failed.message
    assert heard["good"].ids == naive_greedy(STEM, 12)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1e308},
        {"temperature": 5e-324},
        {"temperature": 1.0, "top_p": 5e-324},
        {"temperature": 1.0, "top_k": 1 << 62},
        {"temperature": 1.0, "seed": -(1 << 63)},
        {"logit_bias": {1: 1e6, 2: -1e6}},
        {"presence_penalty": 1e6, "frequency_penalty": -1e6, "repetition_penalty": 1e6},
        {"min_tokens": 1 << 62},
        {"max_tokens": 83},
    ],
    ids=str,
)
def test_extreme_but_allowed(params: dict[str, object]) -> None:
    heard = run(make_core(), [request("x", STEM, **params)])  # type: ignore[arg-type]
    assert heard["x"].finished.reason in ("stop", "length")


def test_an_id_in_use_is_refused_and_an_ended_one_is_free() -> None:
    core = make_core()
    core.add(CLIENT, request("x", STEM))
    core.add(CLIENT, request("x", STEM))
    core.add(b"other", request("x", STEM))
    replies = core.take_replies()
    assert [type(reply) for reply in replies.pop(CLIENT)] == [Failed]
    assert replies == {}
    while core.has_work:
        core.step()
    assert set(core.take_replies()) == {CLIENT, b"other"}
    assert run(core, [request("x", STEM)])["x"].finished.completion_tokens == 12


def test_a_full_queue_is_busy() -> None:
    core = make_core(max_waiting=2)
    heard = run(core, [request(str(i), STEM) for i in range(4)])
    assert [type(heard[str(i)].end).__name__ for i in range(4)] == ["Finished", "Finished", "Failed", "Failed"]
    assert heard["3"].failed.code == "busy"


@pytest.mark.parametrize("steps", range(8))
def test_abort_in_every_state(steps: int) -> None:
    core = make_core(FakeRunner(blocks=14, eos=()), max_sequences=3)
    client = Client()
    for i in range(6):
        core.add(CLIENT, request(str(i), PROMPTS[i], priority=i == 5 and steps > 4))
    for _ in range(steps):
        core.step()
        core.check()
    for id in ["0", "3", "5", "0", "unknown"]:
        core.abort(CLIENT, Abort(id))
        core.check()
    core.abort(b"stranger", Abort("1"))
    client.hear(core.take_replies()[CLIENT])
    assert all(client.heard[id].finished.reason == "abort" for id in "035")
    while core.has_work:
        core.step()
        core.check()
        client.hear(core.take_replies().get(CLIENT, []))
    for i in (1, 2, 4):
        assert client.heard[str(i)].ids == naive_greedy(PROMPTS[i], 12, eos=())
    assert core.stats().lanes["a"].active == 0


def test_an_ended_sequence_may_be_aborted() -> None:
    core = make_core()
    run(core, [request("x", STEM)])
    core.abort(CLIENT, Abort("x"))
    assert core.take_replies() == {}


def test_a_sequence_is_aborted_before_its_forced_tokens_are_told() -> None:
    core = make_core()
    core.add(CLIENT, request("x", STEM, forced=(5, 6), max_tokens=2))
    core.abort(CLIENT, Abort("x"))
    (finished,) = core.take_replies()[CLIENT]
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.completion_tokens) == ("abort", 0)
    assert not core.has_work


def test_a_client_that_is_gone_takes_its_sequences_along() -> None:
    core = make_core()
    for i in range(3):
        core.add(CLIENT, request(str(i), PROMPTS[i]))
    core.add(b"other", request("x", STEM))
    core.step()
    core.drop(CLIENT)
    core.check()
    seen = set()
    while core.has_work:
        core.step()
        seen |= set(core.take_replies())
    assert seen == {b"other"}
    core.drop(b"nobody")


def spoil(value: float, token: int) -> FakeRunner:
    """A runner that gives `value` among the logits of every sequence that has just read `token`."""

    def fault(batch: ForwardBatch, logits: torch.Tensor) -> None:
        for r, row in enumerate(batch.logit_rows.tolist()):
            if int(batch.token_ids[row]) == token:
                logits[r, 5] = value

    return FakeRunner(blocks=400, eos=(), fault=fault)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_gone_bad_fail_their_sequence_alone(value: float) -> None:
    core = make_core(spoil(value, 50))
    bad = [*STEM, 50]
    good = [prompt for prompt in PROMPTS if 50 not in [*prompt, *naive_greedy(prompt, 12, eos=())]][:4]
    heard = run(core, [request("bad", bad), *(request(str(i), prompt) for i, prompt in enumerate(good))])
    assert heard["bad"].failed.code == "numeric"
    for i, prompt in enumerate(good):
        assert heard[str(i)].ids == naive_greedy(prompt, 12, eos=())


def test_what_gave_bad_numbers_is_not_reused() -> None:
    core = make_core(spoil(math.nan, 50))
    bad = [*STEM, 50]
    run(core, [request("bad", bad)])
    assert core.stats().lanes["a"].cached == 0


def crash(*tokens: int) -> FakeRunner:
    """A runner that raises whenever one of `tokens` is in the batch."""

    def fault(batch: ForwardBatch, logits: torch.Tensor) -> None:
        if set(batch.token_ids.tolist()) & set(tokens):
            raise RuntimeError("this model does not like that token")

    return FakeRunner(blocks=400, eos=(), fault=fault)


def test_a_crash_is_pinned_on_the_sequence_that_causes_it() -> None:
    core = make_core(crash(50))
    good = [prompt for prompt in PROMPTS if 50 not in [*prompt, *naive_greedy(prompt, 12, eos=())]][:4]
    heard = run(core, [request("bad", [*STEM, 50]), *(request(str(i), prompt) for i, prompt in enumerate(good))])
    assert heard["bad"].failed.code == "internal"
    for i, prompt in enumerate(good):
        assert heard[str(i)].ids == naive_greedy(prompt, 12, eos=())


def test_a_model_that_always_crashes_fails_everyone_and_the_core_lives() -> None:
    core = make_core(crash(*range(64)))
    heard = run(core, [request(str(i), prompt) for i, prompt in enumerate(PROMPTS)])
    assert {one.failed.code for one in heard.values()} == {"internal"}
    assert core.stats().lanes["a"].active == 0


def test_broken_books_cost_a_lane_its_sequences_not_the_engine() -> None:
    lane = make_lane()
    core = EngineCore([lane], seeds=lambda: 1)
    for i in range(3):
        core.add(CLIENT, request(str(i), PROMPTS[i]))
    core.step()
    lane._scheduler.pool._refs[:] = [5] * 32
    core.audit()
    ends = [reply for reply in core.take_replies()[CLIENT] if isinstance(reply, Failed)]
    assert {end.code for end in ends} == {"internal"}
    assert len(ends) == 3
    assert run(core, [request("x", STEM)])["x"].ids == naive_greedy(STEM, 12)


def test_lanes_take_turns() -> None:
    lanes = [make_lane(FakeRunner(eos=()), name=name, weight=weight) for name, weight in (("a", 1.0), ("b", 3.0))]
    core = EngineCore(lanes, seeds=lambda: 1)
    requests = [request(f"{lane}{i}", PROMPTS[i], lane=lane, max_tokens=40) for lane in "ab" for i in range(3)]
    client = Client()
    for one in requests:
        core.add(CLIENT, one)
    ended: list[str] = []
    while core.has_work:
        core.step()
        replies = core.take_replies().get(CLIENT, [])
        client.hear(replies)
        ended += [reply.id for reply in replies if isinstance(reply, Finished)]
        steps = {name: stats.steps for name, stats in core.stats().lanes.items()}
        if not ended:
            assert steps["a"] * 8 >= steps["b"] - 8, "the light lane starves"
    for one in requests:
        assert client.heard[one.id].ids == naive_greedy(one.token_ids, 40, eos=())
    assert ended[0].startswith("b"), "the heavy lane is served first"


def test_the_same_history_gives_the_same_plan() -> None:
    def batches() -> list[tuple[list[int], list[int]]]:
        runner = FakeRunner(blocks=14)
        run(make_core(runner), [request(str(i), prompt) for i, prompt in enumerate(PROMPTS)])
        return [(batch.token_ids.tolist(), batch.slots.tolist()) for batch in runner.batches]

    assert batches() == batches()


def test_no_batch_exceeds_its_budget() -> None:
    runner = FakeRunner(blocks=60)
    run(make_core(runner, max_batch_tokens=7), [request(str(i), prompt) for i, prompt in enumerate(PROMPTS)])
    assert max(len(batch.token_ids) for batch in runner.batches) == 7


def test_params_of_the_wire_are_those_of_the_core() -> None:
    assert request("x", [1]).sampling == SamplingParams(max_tokens=12, temperature=0.0)
