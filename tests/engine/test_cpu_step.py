"""Whole native steps on flat buffers: the draw, repeats and their ends, and plans that must be refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fakes.checkpoints import tiny_checkpoint
from support.native import thread_pool
from support.paged import Paged
from tiergate.engine import LaneConfig
from tiergate.engine.batch import StepRunner
from tiergate.engine.runners.cpu import NativeRunner, NativeStep
from tiergate.engine.runners.cpu import open as open_runner
from tiergate.engine.step_buffers import STOPS_A_SEQUENCE, StepBuffers, make_buffers
from tiergate.kernels import SampleRows, StepRefused, log_probabilities, sample

BLOCKS, VOCAB, ROWS, WIDTH, REPEAT = 40, 96, 6, 6, 8
PROMPTS = [[5, 6, 7, 8, 9], [11] * 20, [40], list(range(60, 90))]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> NativeRunner:
    torch.set_num_threads(1)
    folder = tiny_checkpoint(tmp_path_factory.mktemp("llama"))
    lane = LaneConfig(name="lane", model=str(folder), blocks=BLOCKS, max_batch_tokens=64, max_sequences=ROWS)
    return open_runner(lane, thread_pool(2))


class Bench:
    """A lane's buffers with some sequences in them, prefilled."""

    def __init__(self, runner: NativeRunner, prompts: list[list[int]], seed: int = 0) -> None:
        self.runner = runner
        tables = np.random.default_rng(seed).permutation(ROWS * WIDTH).astype(np.int32).reshape(ROWS, WIDTH)
        self.buffers: StepBuffers = make_buffers(tables, max_tokens=64, max_repeat=REPEAT)
        self.step: NativeStep = runner.bind(self.buffers)
        self.sampling = self.buffers.sampling
        for name, value in {"temperature": 0.0, "top_p": 1.0, "logprobs": -1, "forced": -1}.items():
            self.sampling[name] = value
        self.prompts = prompts

    def prefill(self) -> int:
        b, lengths = self.buffers, [len(ids) for ids in self.prompts]
        size, ends = len(lengths), np.cumsum(lengths)
        b.token_ids[: ends[-1]] = [token for ids in self.prompts for token in ids]
        b.positions[: ends[-1]] = [at for length in lengths for at in range(length)]
        b.query_starts[1 : size + 1] = ends
        b.seq_lens[:size] = lengths
        b.table_rows[:size] = range(size)
        b.logit_rows[:size] = ends - 1
        self.sampling["position"][:size] = lengths
        return self.step(tokens=int(ends[-1]), sequences=size, rows=size, repeat=1, wake=-1)

    def decode(self) -> None:
        """Lay out the decoding of the tokens that were drawn last."""
        b, size = self.buffers, len(self.prompts)
        b.token_ids[:size] = b.chosen["token"][:size]
        b.positions[:size] = b.seq_lens[:size]
        b.seq_lens[:size] += 1
        b.query_starts[: size + 1] = b.logit_rows[: size + 1] = range(size + 1)
        self.sampling["position"][:size] = b.seq_lens[:size]

    def run(self, repeat: int, wake: int = -1) -> int:
        size = len(self.prompts)
        return self.step(tokens=size, sequences=size, rows=size, repeat=repeat, wake=wake)

    def drawn(self, steps: int) -> list[list[int]]:
        size = len(self.prompts)
        return self.buffers.chosen["token"][: steps * size].reshape(steps, size).tolist()


def singles(runner: NativeRunner, count: int, sampled: bool) -> tuple[Bench, list[list[int]]]:
    bench = Bench(runner, PROMPTS, seed=3)
    if sampled:
        bench.sampling["temperature"] = 1.2
        bench.sampling["seed"] = range(100, 164)
    assert bench.prefill() == 1
    tokens = []
    for _ in range(count):
        bench.decode()
        assert bench.run(1) == 1
        tokens += bench.drawn(1)
    return bench, tokens


def test_it_is_a_step_runner(runner: NativeRunner) -> None:
    assert isinstance(runner, StepRunner)


def test_a_draw_is_that_of_the_op_on_the_runners_logits(runner: NativeRunner) -> None:
    want = Paged(runner, seed=1).step(dict(zip("abcd", PROMPTS, strict=True)), last_only=True)
    logits = torch.cat(list(want.values()))
    bench = Bench(runner, PROMPTS)
    bench.sampling["temperature"] = [0.0, 0.7, 1.5, 1.0] + [0.0] * 60
    bench.sampling["top_p"][1:3] = 0.8
    bench.sampling["top_k"][3] = 20
    bench.sampling["seed"][:4] = [1, 2, 3, 4]
    bench.sampling["logprobs"] = 5
    assert bench.prefill() == 1
    empty = np.empty(0, np.float32)
    rows = SampleRows(
        temperature=bench.sampling["temperature"][:4].copy(),
        top_k=bench.sampling["top_k"][:4].astype(np.int64),
        top_p=bench.sampling["top_p"][:4].copy(),
        min_p=bench.sampling["min_p"][:4].copy(),
        seeds=(1, 2, 3, 4),
        positions=tuple(len(ids) for ids in PROMPTS),
        edit_starts=np.zeros(5, np.int64),
        edit_ids=np.empty(0, np.int64),
        edit_scales=empty,
        edit_adds=empty,
        bans={},
    )
    assert bench.drawn(1) == [sample(logits, rows)]
    for r, record in enumerate(bench.buffers.chosen[:4]):
        value, top = log_probabilities(logits[r], int(record["token"]), 5)
        assert record["logprob"] == pytest.approx(value, abs=1e-5)
        assert record["top_ids"][:5].tolist() == [token for token, _ in top]
        probabilities = logits[r].double().softmax(0)
        assert record["entropy"] == pytest.approx(float(-(probabilities * probabilities.log()).sum()), abs=1e-4)


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_four_steps_in_one_call_are_four_steps(runner: NativeRunner, sampled: bool) -> None:
    alone, tokens = singles(runner, 4, sampled)
    bench, _ = singles(runner, 0, sampled)
    bench.decode()
    assert bench.run(4) == 4
    assert bench.drawn(4) == tokens
    assert bench.buffers.seq_lens[:4].tolist() == alone.buffers.seq_lens[:4].tolist()
    assert bench.buffers.positions[:4].tolist() == alone.buffers.positions[:4].tolist()
    assert bench.buffers.token_ids[:4].tolist() == tokens[2]


def test_a_repeat_ends_with_the_step_that_draws_a_stop(runner: NativeRunner) -> None:
    _, tokens = singles(runner, 6, sampled=True)
    third = tokens[2][1]
    assert third not in [tokens[0][1], tokens[1][1]]
    bench, _ = singles(runner, 0, sampled=True)
    bench.decode()
    bench.buffers.stop_ids[:3] = [third, 95, third]
    # Others may draw it: it is a stop of the second sequence alone.
    bench.buffers.stop_starts[:5] = [0, 0, 1, 1, 2]
    bench.buffers.stop_ids[1] = next(token for token in range(96) if token not in {row[3] for row in tokens})
    assert bench.run(6) == 3
    assert bench.drawn(3) == tokens[:3]


def test_a_repeat_ends_when_it_is_woken(runner: NativeRunner) -> None:
    reading, writing = os.pipe()
    try:
        bench, _ = singles(runner, 0, sampled=False)
        bench.decode()
        assert bench.run(3, wake=reading) == 3
        bench, _ = singles(runner, 0, sampled=False)
        bench.decode()
        os.write(writing, b"x")
        assert bench.run(3, wake=reading) == 1
    finally:
        os.close(reading)
        os.close(writing)


def test_drafted_rows_each_draw(runner: NativeRunner) -> None:
    """What a chunk draws at each row is what single steps over the same tokens draw."""
    _, tokens = singles(runner, 3, sampled=True)
    bench, _ = singles(runner, 0, sampled=True)
    first = bench.buffers.chosen["token"][0]
    b, start = bench.buffers, len(PROMPTS[0])
    b.token_ids[:4] = [first, *(row[0] for row in tokens[:2]), 17]
    b.positions[:4] = range(start, start + 4)
    b.query_starts[:2], b.seq_lens[0] = [0, 4], start + 4
    b.logit_rows[:4] = range(4)
    bench.sampling["position"][:4] = range(start + 1, start + 5)
    bench.sampling["seed"][:4] = 100
    assert bench.step(tokens=4, sequences=1, rows=4, repeat=1, wake=-1) == 1
    assert b.chosen["token"][:3].tolist() == [row[0] for row in tokens]


def test_a_forced_token_is_the_one(runner: NativeRunner) -> None:
    bench = Bench(runner, PROMPTS)
    bench.sampling["forced"][1] = 33
    bench.prefill()
    assert bench.buffers.chosen["token"][1] == 33


Break = Callable[[Bench], dict[str, int] | None]
"""Spoils a plan of one decode step for four sequences; what it returns replaces arguments of the call."""


def put(name: str, index: Any, value: int) -> Break:
    def spoil(bench: Bench) -> None:
        getattr(bench.buffers, name)[index] = value

    return spoil


def call(**arguments: int) -> Break:
    return lambda bench: arguments


def draw(name: str, value: float) -> Break:
    def spoil(bench: Bench) -> None:
        bench.sampling[name][2] = value

    return spoil


@pytest.mark.parametrize(
    ("fault", "spoil"),
    [
        ("bad shape", call(tokens=-1)),
        ("bad shape", call(tokens=65)),
        ("bad shape", call(tokens=3)),
        ("bad shape", call(sequences=5)),
        ("bad shape", call(sequences=0)),
        ("bad shape", call(sequences=-1)),
        ("bad shape", call(rows=5)),
        ("bad shape", call(rows=-1)),
        ("bad shape", call(repeat=0)),
        ("bad shape", call(rows=3, repeat=2)),
        ("bad shape", put("query_starts", 0, 1)),
        ("bad shape", put("query_starts", 2, 1)),
        ("bad shape", put("query_starts", 2, 1 << 30)),
        ("bad shape", put("logit_rows", 0, -1)),
        ("bad shape", put("logit_rows", 3, 4)),
        ("bad shape", put("logit_rows", 2, 1)),
        ("bad token", put("token_ids", 3, VOCAB)),
        ("bad token", put("token_ids", 0, -1)),
        ("bad position", put("positions", 0, 0)),
        ("bad position", put("positions", 2, -1)),
        ("bad position", put("seq_lens", 1, 0)),
        ("bad position", put("seq_lens", 1, -(1 << 31))),
        ("bad table", put("table_rows", 0, ROWS)),
        ("bad table", put("table_rows", 0, -1)),
        ("bad table", put("tables", (3, 1), BLOCKS)),
        ("bad table", put("tables", (3, 0), -1)),
        ("bad sampling", draw("temperature", np.nan)),
        ("bad sampling", draw("temperature", -1.0)),
        ("bad sampling", draw("top_p", 0.0)),
        ("bad sampling", draw("top_p", 1.5)),
        ("bad sampling", draw("min_p", np.nan)),
        ("bad sampling", draw("top_k", -1)),
        ("bad sampling", draw("logprobs", 33)),
        ("bad sampling", draw("forced", VOCAB)),
        ("bad sampling", draw("edit_count", 1)),
        ("bad sampling", draw("ban_count", -1)),
    ],
)
def test_what_no_step_may_ask_for_is_refused(runner: NativeRunner, fault: str, spoil: Break) -> None:
    bench, _ = singles(runner, 0, sampled=False)
    bench.decode()
    arguments = {"tokens": 4, "sequences": 4, "rows": 4, "repeat": 1, "wake": -1} | (spoil(bench) or {})
    bench.buffers.chosen["token"] = 77
    with pytest.raises(StepRefused, match=fault):
        bench.step(**arguments)
    assert (bench.buffers.chosen["token"] == 77).all()


def test_a_repeat_past_the_end_of_a_table_is_refused(runner: NativeRunner) -> None:
    bench = Bench(runner, [[1]])
    bench.prefill()
    bench.decode()
    bench.buffers.tables[0, 1] = -1
    bench.buffers.seq_lens[0], bench.buffers.positions[0] = 14, 13
    assert bench.run(3) == 3
    bench.buffers.seq_lens[0], bench.buffers.positions[0] = 14, 13
    with pytest.raises(StepRefused, match="bad table"):
        bench.run(4)


def test_ids_of_edits_and_bans_are_checked(runner: NativeRunner) -> None:
    bench = Bench(runner, PROMPTS)
    ids, ones = np.array([3, VOCAB], np.int32), np.ones(2, np.float32)
    for name, array in {"edit_ids": ids, "edit_scales": ones, "edit_adds": ones, "ban_ids": ids}.items():
        bench.sampling[name][0] = array.ctypes.data
    for count in ("edit_count", "ban_count"):
        bench.sampling[count][0] = 2
        with pytest.raises(StepRefused, match="bad sampling"):
            bench.prefill()
        bench.sampling[count][0] = 1
        assert bench.prefill() == 1


def test_buffers_larger_than_the_runner_are_refused(runner: NativeRunner) -> None:
    with pytest.raises(ValueError, match="65"):
        runner.bind(make_buffers(np.zeros((ROWS, WIDTH), np.int32), max_tokens=65, max_repeat=1))


@given(
    edits=st.lists(
        st.tuples(
            st.sampled_from(
                ["token_ids", "positions", "query_starts", "seq_lens", "table_rows", "tables", "logit_rows",
                 "stop_starts"]
            ),
            st.integers(0, 6),
            st.one_of(st.integers(-2, 45), st.integers(-(2**31), 2**31 - 1)),
        ),
        max_size=4,
    ),
    counts=st.tuples(*[st.one_of(st.just(4), st.integers(-2, 70))] * 3),
    repeat=st.integers(-1, REPEAT),
)  # fmt: skip
def test_no_plan_reaches_beyond_its_memory(
    runner: NativeRunner, edits: list[tuple[str, int, int]], counts: tuple[int, int, int], repeat: int
) -> None:
    """Whatever the plan, it is refused or carried out (`make sanitize` watches every access)."""
    bench, _ = singles(runner, 0, sampled=False)
    bench.decode()
    bench.buffers.stop_starts[:] = 0
    for name, index, value in edits:
        array = getattr(bench.buffers, name).reshape(-1)
        array[index % len(array)] = value
    # What the core cannot know: how long the caller's arrays of stops are.
    limit = STOPS_A_SEQUENCE * ROWS
    np.clip(bench.buffers.stop_starts, -2, limit, out=bench.buffers.stop_starts)
    tokens, sequences, rows = counts
    if sequences > ROWS or rows > 64:
        return
    try:
        done = bench.step(tokens=tokens, sequences=sequences, rows=rows, repeat=repeat, wake=-1)
    except StepRefused:
        return
    assert 1 <= done <= repeat
    assert (bench.buffers.chosen["token"][: done * rows] < VOCAB).all()
