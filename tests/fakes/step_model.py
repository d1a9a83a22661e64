"""The fake model behind the native protocol: whole steps on flat buffers, drawing and repeating included."""

from __future__ import annotations

import ctypes
import select
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fakes.model import FakeRunner
from tiergate.engine.batch import ForwardBatch
from tiergate.engine.step_buffers import NUMERIC, TOP_LOGPROBS, StepBuffers
from tiergate.kernels import SampleRows, log_probabilities, sample


class FakeStepRunner(FakeRunner):
    """A `StepRunner` that gives the very tokens of a `FakeRunner` with the Python sampler.

    It holds callers to the contract: what `tg_step` would refuse raises ValueError. `calls` records (tokens, repeat,
    steps done) of each call; `batches` has a `ForwardBatch` for each step, as with any `FakeRunner`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.calls: list[tuple[int, int, int]] = []

    def bind(self, buffers: StepBuffers) -> FakeStep:
        return FakeStep(self, buffers)


class FakeStep:
    def __init__(self, runner: FakeRunner, buffers: StepBuffers) -> None:
        self._runner = runner
        self._buffers = buffers

    def __call__(self, *, tokens: int, sequences: int, rows: int, repeat: int, wake: int) -> int:
        self._check(tokens, sequences, rows, repeat)
        buffers, runner = self._buffers, self._runner
        done = 0
        while done < repeat:
            chosen = buffers.chosen[done * rows : (done + 1) * rows]
            self._one(self._batch(tokens, sequences, rows), chosen, done)
            done += 1
            if done < repeat and self._must_end(chosen["token"], sequences, wake):
                break
            if done < repeat:
                buffers.token_ids[:sequences] = chosen["token"]
                buffers.positions[:sequences] += 1
                buffers.seq_lens[:sequences] += 1
        assert isinstance(runner, FakeStepRunner)
        runner.calls.append((tokens, repeat, done))
        return done

    def _check(self, tokens: int, sequences: int, rows: int, repeat: int) -> None:
        b, size = self._buffers, self._runner.block_size
        starts = b.query_starts[: sequences + 1]
        _require(0 < sequences <= tokens <= b.max_tokens and sequences <= b.max_sequences, "counts")
        _require(starts[0] == 0 and starts[-1] == tokens and (np.diff(starts) > 0).all(), "query starts")
        _require(
            bool((b.token_ids[:tokens] >= 0).all() and (b.token_ids[:tokens] < self._runner.facts.vocab).all()), "ids"
        )
        wanted = b.logit_rows[:rows]
        _require(0 <= rows <= tokens and bool((np.diff(wanted) > 0).all()), "logit rows")
        _require(rows == 0 or (wanted[0] >= 0 and wanted[-1] < tokens), "logit rows")
        _require(1 <= repeat <= b.max_repeat, "repeat")
        if repeat > 1:
            _require(tokens == sequences == rows, "a repeat of what is not one token of each sequence")
        for s in range(sequences):
            length = starts[s + 1] - starts[s]
            at = b.positions[starts[s] : starts[s + 1]]
            _require(bool((at == b.seq_lens[s] - length + np.arange(length)).all() and at[0] >= 0), "positions")
            _require(bool(0 <= b.table_rows[s] < len(b.tables)), "table row")
            reach = -(-(int(b.seq_lens[s]) + repeat - 1) // size)
            _require(reach <= b.tables.shape[1], "a table too short")
            blocks = b.tables[b.table_rows[s], :reach]
            _require(bool((blocks >= 0).all() and (blocks < self._runner.blocks).all()), "block ids")
            _require(len(set(blocks.tolist())) == reach, "a block twice in a table")

    def _batch(self, tokens: int, sequences: int, rows: int) -> ForwardBatch:
        b, size = self._buffers, self._runner.block_size
        starts, lengths = b.query_starts[: sequences + 1], b.seq_lens[:sequences]
        counts = np.diff(starts)
        tables = b.tables[b.table_rows[:sequences]]
        positions = b.positions[:tokens].astype(np.int64)
        owners = np.repeat(np.arange(sequences), counts)
        slots = tables[owners, positions // size].astype(np.int64) * size + positions % size
        return ForwardBatch(
            token_ids=torch.from_numpy(b.token_ids[:tokens].astype(np.int64)),
            positions=torch.from_numpy(positions),
            slots=torch.from_numpy(slots),
            query_starts=torch.from_numpy(starts.copy()),
            seq_lens=torch.from_numpy(lengths.copy()),
            block_tables=torch.from_numpy(tables),
            logit_rows=torch.from_numpy(b.logit_rows[:rows].astype(np.int64)),
            query_lens=tuple(counts.tolist()),
            context_lens=tuple(lengths.tolist()),
        )

    def _one(self, batch: ForwardBatch, chosen: npt.NDArray[np.void], done: int) -> None:
        logits = self._runner.forward(batch)
        params = self._buffers.sampling[: len(chosen)]
        for r, token in enumerate(sample(logits, _sample_rows(params, done))):
            forced = int(params["forced"][r])
            final = forced if forced >= 0 and token != NUMERIC else token
            chosen[r] = 0
            chosen["token"][r] = final
            wanted = int(params["logprobs"][r])
            if wanted >= 0 and token != NUMERIC:
                _require(wanted <= TOP_LOGPROBS, "logprobs")
                value, top = log_probabilities(logits[r], final, wanted)
                chosen["logprob"][r] = value
                chosen["top_count"][r] = len(top)
                for place, (id, other) in enumerate(top):
                    chosen["top_ids"][r, place] = id
                    chosen["top_logprobs"][r, place] = other

    def _must_end(self, drawn: npt.NDArray[np.int32], sequences: int, wake: int) -> bool:
        b = self._buffers
        for s, token in enumerate(drawn.tolist()):
            if token == NUMERIC or token in b.stop_ids[b.stop_starts[s] : b.stop_starts[s + 1]]:
                return True
        return wake >= 0 and bool(select.select([wake], [], [], 0)[0])


def _sample_rows(params: npt.NDArray[np.void], done: int) -> SampleRows:
    edits = [_edits(row) for row in params]
    counts = params["edit_count"].astype(np.int64)
    return SampleRows(
        temperature=params["temperature"].copy(),
        top_k=params["top_k"].astype(np.int64),
        top_p=params["top_p"].copy(),
        min_p=params["min_p"].copy(),
        seeds=tuple(params["seed"].tolist()),
        positions=tuple((params["position"] + done).tolist()),
        edit_starts=np.concatenate(([0], np.cumsum(counts))),
        edit_ids=np.concatenate([ids.astype(np.int64) for ids, _, _ in edits]) if edits else np.empty(0, np.int64),
        edit_scales=np.concatenate([scales for _, scales, _ in edits]) if edits else np.empty(0, np.float32),
        edit_adds=np.concatenate([adds for _, _, adds in edits]) if edits else np.empty(0, np.float32),
        bans={
            r: tuple(_read(row["ban_ids"], row["ban_count"], ctypes.c_int32).tolist())
            for r, row in enumerate(params)
            if row["ban_count"]
        },
    )


def _edits(row: np.void) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    count = row["edit_count"]
    return (
        _read(row["edit_ids"], count, ctypes.c_int32),
        _read(row["edit_scales"], count, ctypes.c_float),
        _read(row["edit_adds"], count, ctypes.c_float),
    )


def _read(address: int, count: int, kind: Any) -> npt.NDArray[Any]:
    """What the C++ core would find there."""
    if not count:
        return np.empty(0, kind)
    return np.ctypeslib.as_array((kind * int(count)).from_address(int(address))).copy()


def _require(holds: bool | np.bool_, what: str) -> None:
    if not holds:
        raise ValueError(f"a step that no runner may be asked for: {what}")
