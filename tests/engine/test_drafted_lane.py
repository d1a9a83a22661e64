"""A lane that guesses ahead says what it says without, and holds nothing that was guessed wrongly."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fakes.step_model import FakeStepRunner
from support.cores import Heard, make_core, request, run
from tiergate.engine import ThinkLimit
from tiergate.engine.batch import ForwardBatch
from tiergate.engine.messages import Generate

VOCAB = 32
PERIOD = 7


def prefer_a_loop(batch: ForwardBatch, logits: torch.Tensor) -> None:
    """Tokens from 10 on like to go round in circles of `PERIOD`."""
    for r, row in enumerate(batch.logit_rows.tolist()):
        logits[r, 10 + (int(batch.token_ids[row]) + 1) % PERIOD] += 8.0


def runner(blocks: int = 200) -> FakeStepRunner:
    return FakeStepRunner(blocks=blocks, block_size=4, vocab=VOCAB, fault=prefer_a_loop)


THINK = ThinkLimit(closers=((3,), (4, 5)), openers=((2,),), open=True, hard=30, soft=24, handoff=(6, 7))
MANNERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 5},
    "cut": {"temperature": 0.9, "top_p": 0.9, "top_k": 12, "seed": 6},
    "penalised": {"presence_penalty": 0.5},
    "biased": {"temperature": 1.0, "seed": 7, "logit_bias": {11: 1.5, 12: -1.0}},
    "late": {"min_tokens": 20, "temperature": 1.0, "seed": 8},
    "stopped": {"temperature": 1.3, "seed": 9, "stop_token_ids": (15,)},
    "thinking": {"temperature": 0.7, "seed": 10, "think": THINK},
    "forced": {"forced": (20, 21, 22)},
    "unshared": {"store": False, "salt": "b"},
    "told": {"logprobs": 2},
}


def everyone(copies: int = 1, **more: Any) -> list[Generate]:
    return [
        request(f"{name} {copy}", [*range(10, 10 + PERIOD), 1 + copy, 13, 14], max_tokens=60, **{**manner, **more})
        for copy in range(copies)
        for name, manner in MANNERS.items()
    ]


def said(heard: dict[str, Heard]) -> dict[str, tuple[list[int], str, int]]:
    return {id: (one.ids, one.finished.reason, one.finished.thinking_tokens) for id, one in heard.items()}


@pytest.mark.parametrize("blocks", [200, 40])
@pytest.mark.parametrize("budget", [64, 9])
def test_answers_are_those_without_drafts(blocks: int, budget: int) -> None:
    settings = {"max_batch_tokens": budget, "max_sequences": 6}
    drafted = make_core(runner(blocks), **settings)
    answers = said(run(drafted, everyone(2)))
    assert answers == said(run(make_core(runner(200), **settings, drafting=False), everyone(2)))
    stats = drafted.stats().lanes["a"]
    assert 0 < stats.accepted_tokens < stats.drafted_tokens
    assert stats.active == 0


@pytest.mark.parametrize("name", MANNERS)
def test_alone_too_and_in_fewer_steps(name: str) -> None:
    one = [r for r in everyone() if r.id.startswith(name)]
    drafted, plain = make_core(runner()), make_core(runner(), drafting=False)
    assert said(run(drafted, one)) == said(run(plain, one))
    saved = plain.stats().lanes["a"].steps - drafted.stats().lanes["a"].steps
    if name in ("penalised", "told"):
        assert drafted.stats().lanes["a"].drafted_tokens == 0
    elif name not in ("stopped", "thinking"):
        assert saved > 0
    assert saved <= drafted.stats().lanes["a"].accepted_tokens


def test_a_prefix_that_others_take_holds_no_wrong_guess() -> None:
    """The fake model reads all of its history back from the cache, so a wrong token there would change an answer."""
    core, fresh = make_core(runner()), make_core(runner(), drafting=False, prefix_cache=False)
    prompts = [list(range(10, 10 + PERIOD))]
    for turn in range(4):
        ask = [
            request(f"{turn}", prompts[-1], max_tokens=25, temperature=1.2, seed=turn),
            request(f"{turn} again", prompts[-1], max_tokens=25, temperature=1.2, seed=turn),
        ]
        heard = run(core, ask)
        assert said(heard) == said(run(fresh, ask))
        prompts.append([*prompts[-1], *heard[f"{turn}"].ids])
    stats = core.stats().lanes["a"]
    assert stats.accepted_tokens < stats.drafted_tokens
    assert stats.cached_tokens > 0


def test_a_lane_told_not_to_draft_does_not() -> None:
    core = make_core(runner(), drafting=False)
    run(core, everyone())
    assert core.stats().lanes["a"].drafted_tokens == 0
