"""The engine's greedy output beside transformers' `generate`, on real weights, through a real engine process.

In fp32 the ids are equal. In bf16 the two round differently, so the first difference, if there is one, must fall on
a step where transformers' own two best logits lie closer together than `BF16_EPSILON`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.models import embedded_folder
from support.engine_socket import EngineSocket, Outcome
from support.prompts import CONVERSATIONS
from tiergate.engine import EngineConfig, LaneConfig, SamplingParams, launch
from tiergate.engine.messages import Generate

pytestmark = [pytest.mark.models, pytest.mark.timeout(900)]

NEW_TOKENS = 24
BLOCK = 16
BF16_EPSILON = 0.25
"""Logits near 20 are 0.125 apart in bf16, so two kernels may order values less than two such steps apart either way."""


@dataclass(frozen=True)
class Reference:
    ids: list[int]
    gaps: list[float]
    """At each step, how far transformers' best logit lies above its second best."""


@pytest.fixture(scope="module")
def folder() -> Path:
    return embedded_folder("smollm2-135m")


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [
        list(tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=True)["input_ids"])
        for c in CONVERSATIONS
    ]


def reference(folder: Path, prompts: list[list[int]], dtype: torch.dtype) -> list[Reference]:
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # two that spin against a neighbour are many times slower than one
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    found = []
    for prompt in prompts:
        with torch.inference_mode():
            out = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=False,
                max_new_tokens=NEW_TOKENS,
                return_dict_in_generate=True,
                output_logits=True,
            )
        tops = [logits[0].float().topk(2).values for logits in out.logits]
        found.append(Reference(out.sequences[0, len(prompt) :].tolist(), [float(t[0] - t[1]) for t in tops]))
    return found


@pytest.fixture(scope="module")
def fp32(folder: Path, prompts: list[list[int]]) -> list[Reference]:
    return reference(folder, prompts, torch.float32)


@pytest.fixture(scope="module")
def bf16(folder: Path, prompts: list[list[int]]) -> list[Reference]:
    return reference(folder, prompts, torch.bfloat16)


SMALL_BLOCK = 4
"""Of the lane that preempts: an answer outgrows the one block that is set aside for it when it is admitted."""


def blocks(prompts: list[list[int]], more: int) -> int:
    """Small KV blocks that the prompts and `more` tokens each take together."""
    return sum(-(-(len(ids) + more) // SMALL_BLOCK) for ids in prompts)


def growing(prompts: list[list[int]], expected: list[Reference]) -> tuple[list[list[int]], list[Reference]]:
    """The short prompts with long answers."""
    pairs = zip(prompts, expected, strict=True)
    chosen = [(ids, wanted) for ids, wanted in pairs if len(ids) < 100 and len(wanted.ids) == NEW_TOKENS]
    return [ids for ids, _ in chosen], [wanted for _, wanted in chosen]


@pytest.fixture(scope="module")
def socket(folder: Path, prompts: list[list[int]], fp32: list[Reference]) -> Iterator[EngineSocket]:
    """One engine, one lane a way of working; in `tight` short prompts find room together, their answers do not."""
    model = str(folder)
    room = blocks(growing(prompts, fp32)[0], 1) + 2
    lanes = (
        LaneConfig(name="fp32", model=model, precision="fp32"),
        LaneConfig(name="chunks", model=model, precision="fp32", max_batch_tokens=40),
        LaneConfig(
            name="tight", model=model, precision="fp32", block_size=SMALL_BLOCK, blocks=room, prefix_cache=False
        ),
        LaneConfig(name="bf16", model=model, precision="bf16"),
    )
    engine = launch(EngineConfig(lanes=lanes))
    client = EngineSocket(engine.address)
    try:
        client.wait_ready()
        yield client
    finally:
        client.close()
        engine.stop()


def run(socket: EngineSocket, lane: str, prompts: list[list[int]], salt: str, together: bool) -> list[Outcome]:
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0)
    requests = [
        Generate(id=f"{lane}-{salt}-{i}", lane=lane, token_ids=ids, sampling=sampling, salt=salt)
        for i, ids in enumerate(prompts)
    ]
    groups = [requests[:16], requests[16:]] if together else [[request] for request in requests]
    outcomes: dict[str, Outcome] = {}
    for group in groups:
        outcomes |= socket.run(group)
    return [outcomes[request.id] for request in requests]


def assert_equal(outcomes: list[Outcome], expected: list[Reference]) -> None:
    assert [o.ids for o in outcomes] == [r.ids for r in expected]


def assert_close(outcomes: list[Outcome], expected: list[Reference]) -> None:
    for outcome, wanted in zip(outcomes, expected, strict=True):
        for step, (ours, theirs) in enumerate(zip(outcome.ids, wanted.ids, strict=False)):
            if ours != theirs:
                assert wanted.gaps[step] <= BF16_EPSILON, (step, wanted.gaps[step], ours, theirs)
                break
        else:
            assert len(outcome.ids) == len(wanted.ids)


def test_fp32_alone_then_with_prefix_hits(
    socket: EngineSocket, prompts: list[list[int]], fp32: list[Reference]
) -> None:
    first = run(socket, "fp32", prompts, "alone", together=False)
    assert_equal(first, fp32)
    again = run(socket, "fp32", prompts, "alone", together=False)
    assert_equal(again, fp32)
    whole_blocks = [len(ids) > BLOCK for ids in prompts]
    assert [o.finished.cached_tokens > 0 for o in again] == whole_blocks


def test_fp32_in_a_batch_of_16(socket: EngineSocket, prompts: list[list[int]], fp32: list[Reference]) -> None:
    assert_equal(run(socket, "fp32", prompts, "batch", together=True), fp32)


@pytest.mark.parametrize("together", [False, True])
def test_fp32_with_chunked_prefill(
    socket: EngineSocket, prompts: list[list[int]], fp32: list[Reference], together: bool
) -> None:
    assert max(map(len, prompts)) > 40 * 4
    assert_equal(run(socket, "chunks", prompts, f"chunks-{together}", together), fp32)


def test_fp32_with_forced_preemption(socket: EngineSocket, prompts: list[list[int]], fp32: list[Reference]) -> None:
    tight, expected = growing(prompts, fp32)
    outcomes = run(socket, "tight", tight, "tight", together=True)
    assert_equal(outcomes, expected)
    assert sum(o.finished.preemptions for o in outcomes) > 0


@pytest.mark.parametrize("together", [False, True])
def test_bf16_differs_only_in_near_ties(
    socket: EngineSocket, prompts: list[list[int]], bf16: list[Reference], together: bool
) -> None:
    assert_close(run(socket, "bf16", prompts, f"bf16-{together}", together), bf16)
