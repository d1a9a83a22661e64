"""A step on a runner that draws tokens itself: work laid out in flat buffers, or the decoding of before once more."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np

from .batch import StepRunner
from .build_batch import find_logit_rows, join_tokens
from .decode_rows import DecodeRows
from .draw_rows import DrawRows
from .messages import Logprob
from .sampler import Choice
from .scheduler import Work
from .sequence import Sequence
from .step_buffers import NUMERIC, Int32s, make_buffers
from .torch_step import Choices

MAX_REPEAT = 8
"""Most tokens of a sequence that one call may draw."""


class NativeStep:
    """Owns the buffers of a lane's steps, and what its rows draw with."""

    def __init__(self, runner: StepRunner, tables: Int32s, max_tokens: int) -> None:
        self._buffers = make_buffers(tables, max_tokens=max_tokens, max_repeat=MAX_REPEAT)
        self._step = runner.bind(self._buffers)
        self._draws = DrawRows(len(tables))
        self._tokens = self._buffers.chosen["token"]
        self._positions = self._buffers.sampling["position"]
        self._every = np.arange(len(tables) + 1, dtype=np.int32)
        self._laid_out: DecodeRows | None = None
        """Whose decoding the buffers describe now."""
        self._stops: DecodeRows | None = None
        """Whose stops they hold."""

    def run(self, work: Rows[Work]) -> Choices:
        """Compute the work and choose tokens. No sequence changes: what fails may be run again, all of it or parts."""
        drawing = self._lay_out(work)
        rows = len(drawing)
        total = int(self._buffers.query_starts[len(work)])
        self._step(tokens=total, sequences=len(work), rows=rows, repeat=1, wake=-1)
        choices: Choices = []
        tokens, row = self._tokens[:rows].tolist(), 0
        for item in work:
            chosen = [self._choice(item.sequence, r, tokens[r]) for r in range(row, row + item.draws)]
            row += len(chosen)
            choices.append(chosen)
        for item, chosen in zip(work, choices, strict=True):
            if chosen and chosen[0].token is not None and item.sequence.sampling.logprobs is not None:
                self._resolve(item, chosen)
        return choices

    def decode(self, rows: DecodeRows, count: int, wake: int) -> list[list[int]]:
        """Up to `count` tokens for everyone, by sequence; fewer, and the same number for all, where one needs a look.

        No sequence changes: what fails may be run again, by `run`. What comes next must be the decoding of the same
        `rows`, moved on by as many tokens, or anything else by `run`.
        """
        size = len(rows)
        if self._laid_out is not rows:
            self._lay_out_decoding(rows)
        if count > 1 and self._stops is not rows and not self._lay_out_stops(rows):
            count = 1
        buffers = self._buffers
        buffers.seq_lens[:size] = rows.lengths
        np.subtract(rows.lengths, 1, out=buffers.positions[:size])
        self._positions[:size] = rows.lengths
        self._laid_out = None  # should it fail, tokens may have moved on
        done = self._step(tokens=size, sequences=size, rows=size, repeat=count, wake=wake)
        drawn = self._tokens[: done * size].reshape(done, size)
        buffers.token_ids[:size] = drawn[-1]
        self._laid_out = rows
        return drawn.T.tolist()

    def refresh(self, rows: DecodeRows, indices: Rows[int]) -> None:
        """These sequences have looked ahead again: what they draw with may have changed, and their latest token."""
        if self._laid_out is not rows:
            return
        for index in indices:
            sequence = rows.sequences[index]
            self._draws.update(sequence)
            self._buffers.sampling[index] = self._draws.records[sequence.row]
            self._buffers.token_ids[index] = sequence.ids[-1]

    def _lay_out(self, work: Rows[Work]) -> list[Sequence]:
        """Fill the buffers; the sequences of the rows that are drawn."""
        self._laid_out = None
        buffers = self._buffers
        starts = np.array([item.start for item in work], np.int64)
        counts = np.array([item.length for item in work], np.int64)
        lengths, ends = starts + counts, np.cumsum(counts)
        total, size = int(ends[-1]), len(work)
        buffers.token_ids[:total] = np.frombuffer(join_tokens(work), np.int64)
        buffers.positions[:total] = np.arange(total) + np.repeat(lengths - ends, counts)
        buffers.query_starts[0] = 0
        buffers.query_starts[1 : size + 1] = ends
        buffers.seq_lens[:size] = lengths
        buffers.table_rows[:size] = [item.sequence.row for item in work]
        wanted = find_logit_rows(work, ends)
        drawing = [item.sequence for item in work for _ in range(item.draws)]
        for sequence in drawing:
            self._draws.update(sequence)
        rows = len(drawing)
        buffers.logit_rows[:rows] = wanted
        buffers.sampling[:rows] = self._draws.records[[sequence.row for sequence in drawing]]
        self._positions[:rows] = buffers.positions[wanted] + 1
        return drawing

    def _lay_out_decoding(self, rows: DecodeRows) -> None:
        buffers, size = self._buffers, len(rows)
        for sequence in rows.sequences:
            self._draws.update(sequence)
        buffers.token_ids[:size] = [sequence.ids[-1] for sequence in rows.sequences]
        buffers.query_starts[: size + 1] = self._every[: size + 1]
        buffers.logit_rows[:size] = self._every[:size]
        buffers.table_rows[:size] = rows.rows
        buffers.sampling[:size] = self._draws.records[rows.rows]
        self._laid_out = rows

    def _lay_out_stops(self, rows: DecodeRows) -> bool:
        """False where they are too many."""
        buffers, at = self._buffers, 0
        for index, sequence in enumerate(rows.sequences):
            end = at + len(sequence.watch) - 1
            if end > len(buffers.stop_ids):
                return False
            buffers.stop_starts[index] = at
            buffers.stop_ids[at:end] = [token for token in sequence.watch if token != NUMERIC]
            at = end
        buffers.stop_starts[len(rows)] = at
        self._stops = rows
        return True

    def _choice(self, sequence: Sequence, r: int, token: int) -> Choice:
        if token == NUMERIC:
            return Choice(None)
        forced = int(self._buffers.sampling[r]["forced"]) >= 0
        if sequence.sampling.logprobs is None:
            return Choice(token, None, forced)
        record = self._buffers.chosen[r]
        count = int(record["top_count"])
        top = zip(record["top_ids"][:count].tolist(), record["top_logprobs"][:count].tolist(), strict=True)
        return Choice(token, Logprob(float(record["logprob"]), list(top)), forced)

    def _resolve(self, item: Work, chosen: list[Choice]) -> None:
        """Where thinking puts another token in the place of the one drawn, ask again for that one's log-probability."""
        token = chosen[0].token
        assert token is not None
        instead = token if chosen[0].forced else item.sequence.resolve(token)
        if instead == token:
            return
        self._lay_out((item,))
        self._buffers.sampling["forced"][0] = instead
        self._step(tokens=item.length, sequences=1, rows=1, repeat=1, wake=-1)
        chosen[0] = Choice(instead, self._choice(item.sequence, 0, instead).logprob)
