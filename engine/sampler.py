"""Turns a step's logits into the next tokens of its sequences, and sequences into the parameters of a draw."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from tiergate.kernels import NUMERIC, SampleRows, log_probabilities, sample

from . import thinking
from .edits import Floats, Ids
from .messages import Logprob
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Choice:
    """The next token of a sequence; None when its logits were unusable."""

    token: int | None
    logprob: Logprob | None = None
    forced: bool = False


class Row(NamedTuple):
    """The token of `sequence` that comes `ahead` tokens behind its next one, all those between being its drafts."""

    sequence: Sequence
    ahead: int = 0


def choose(logits: torch.Tensor, rows: Rows[Row]) -> list[Choice]:
    """logits float32 [R, vocab], in order. Takes no token yet: asked again, it says the same.

    Forced tokens are assigned when all sampling is done, so that no parameter can touch them.
    """
    tokens = sample(logits, _sample_rows(rows))
    return [_finish(logits, r, token, rows[r]) for r, token in enumerate(tokens)]


def edits_of(sequence: Sequence) -> tuple[Ids, Floats, Floats] | None:
    """Ids, scales and adds of the logits that change for its next token, None when none does; see `SampleRows`."""
    edits, nudge = sequence.edits, nudge_of(sequence)
    if nudge is None:
        return None if edits is None else (edits.ids, edits.scales, edits.adds)
    token, bias = nudge
    if edits is None:
        return np.array([token], np.int32), np.ones(1, np.float32), np.array([bias], np.float32)
    ids, scales, adds = edits.ids, edits.scales, edits.adds.copy()
    known = np.flatnonzero(ids == token)
    if len(known):
        adds[known] += np.float32(bias)
        return ids, scales, adds
    return np.append(ids, np.int32(token)), np.append(scales, np.float32(1)), np.append(adds, np.float32(bias))


def nudge_of(sequence: Sequence) -> tuple[int, float] | None:
    """Token and bias by which thinking is drawn to its end, if it is."""
    state = sequence.think
    if state is None or sequence.rules is None:
        return None
    return thinking.soft_bias(sequence.rules, state)


def bans_of(sequence: Sequence) -> tuple[int, ...]:
    """Tokens that its next one must not be."""
    bans: tuple[int, ...] = ()
    if not sequence.may_end():
        bans = (*sequence.eos, *sequence.stops)
    state = sequence.think
    if state is not None and sequence.rules is not None:
        bans += thinking.banned_openers(sequence.rules, state)
    return bans


def _finish(logits: torch.Tensor, r: int, token: int, row: Row) -> Choice:
    if token == NUMERIC:
        return Choice(None)
    if row.ahead:  # calm: nothing is forced there, and no log-probabilities are wanted
        return Choice(token)
    sequence = row.sequence
    forced = sequence.next_forced()
    final = sequence.resolve(token) if forced is None else forced
    wanted = sequence.sampling.logprobs
    if wanted is None:
        return Choice(final, None, forced is not None)
    return Choice(final, Logprob(*log_probabilities(logits[r], final, wanted)), forced is not None)


def _sample_rows(rows: Rows[Row]) -> SampleRows | None:
    """Parameters of the rows; None, the fast path, when every row is plainly greedy."""
    bans = {r: tokens for r, row in enumerate(rows) if (tokens := bans_of(row.sequence))}
    edits = [edits_of(row.sequence) for row in rows]
    params = [row.sequence.sampling for row in rows]
    if not bans and not any(edits) and all(p.temperature == 0 for p in params):
        return None
    changes = [edit for edit in edits if edit is not None]
    counts = [0 if edit is None else len(edit[0]) for edit in edits]
    return SampleRows(
        temperature=np.array([min(p.temperature, 1e6) for p in params], np.float32),
        top_k=np.array([p.top_k for p in params], np.int64),
        top_p=np.array([p.top_p for p in params], np.float32),
        min_p=np.array([p.min_p for p in params], np.float32),
        seeds=tuple(row.sequence.seed for row in rows),
        positions=tuple(len(row.sequence.ids) + row.ahead for row in rows),
        edit_starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        edit_ids=np.concatenate([ids.astype(np.int64) for ids, _, _ in changes]) if changes else np.empty(0, np.int64),
        edit_scales=np.concatenate([scales for _, scales, _ in changes]) if changes else np.empty(0, np.float32),
        edit_adds=np.concatenate([adds for _, _, adds in changes]) if changes else np.empty(0, np.float32),
        bans=bans,
    )
