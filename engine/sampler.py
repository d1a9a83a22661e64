"""Turns a step's logits into the next token of each sequence."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch

from tiergate.kernels import NUMERIC, SampleRows, log_probabilities, sample

from . import thinking
from .messages import Logprob
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Choice:
    """The next token of a sequence; None when its logits were unusable."""

    token: int | None
    logprob: Logprob | None = None
    forced: bool = False


def choose(logits: torch.Tensor, sequences: Rows[Sequence]) -> list[Choice]:
    """logits float32 [R, vocab], a row a sequence, in order. Takes no token yet: asked again, it says the same.

    Forced tokens are assigned when all sampling is done, so that no parameter can touch them.
    """
    tokens = sample(logits, _rows(sequences))
    return [_finish(logits, r, token, sequences[r]) for r, token in enumerate(tokens)]


def _finish(logits: torch.Tensor, r: int, token: int, sequence: Sequence) -> Choice:
    if token == NUMERIC:
        return Choice(None)
    forced = sequence.next_forced()
    final = sequence.resolve(token) if forced is None else forced
    wanted = sequence.sampling.logprobs
    if wanted is None:
        return Choice(final, None, forced is not None)
    return Choice(final, Logprob(*log_probabilities(logits[r], final, wanted)), forced is not None)


def _rows(sequences: Rows[Sequence]) -> SampleRows | None:
    """Parameters of the rows; None, the fast path, when every row is plainly greedy."""
    bans = {r: tokens for r, sequence in enumerate(sequences) if (tokens := _bans(sequence))}
    nudges = [_nudge(sequence) for sequence in sequences]
    if not bans and not any(nudges) and all(s.edits is None and s.sampling.temperature == 0 for s in sequences):
        return None
    starts, ids, scales, adds = [0], [], [], []
    for sequence, nudge in zip(sequences, nudges, strict=True):
        count = 0
        if sequence.edits is not None:
            ids.append(sequence.edits.ids)
            scales.append(sequence.edits.scales)
            adds.append(sequence.edits.adds)
            count = len(ids[-1])
        if nudge is not None:
            token, bias = nudge
            known = np.flatnonzero(ids[-1] == token) if count else ()
            if len(known):
                adds[-1][known] += np.float32(bias)
            else:
                ids.append(np.array([token], np.int64))
                scales.append(np.ones(1, np.float32))
                adds.append(np.array([bias], np.float32))
                count += 1
        starts.append(starts[-1] + count)
    params = [sequence.sampling for sequence in sequences]
    return SampleRows(
        temperature=np.array([min(p.temperature, 1e6) for p in params], np.float32),
        top_k=np.array([p.top_k for p in params], np.int64),
        top_p=np.array([p.top_p for p in params], np.float32),
        min_p=np.array([p.min_p for p in params], np.float32),
        seeds=tuple(sequence.seed for sequence in sequences),
        positions=tuple(len(sequence.ids) for sequence in sequences),
        edit_starts=np.array(starts, np.int64),
        edit_ids=np.concatenate(ids) if ids else np.empty(0, np.int64),
        edit_scales=np.concatenate(scales) if scales else np.empty(0, np.float32),
        edit_adds=np.concatenate(adds) if adds else np.empty(0, np.float32),
        bans=bans,
    )


def _bans(sequence: Sequence) -> tuple[int, ...]:
    bans: tuple[int, ...] = ()
    if not sequence.may_end():
        bans = (*sequence.eos, *sequence.stops)
    if sequence.think is not None and sequence.rules is not None:
        bans += thinking.banned_openers(sequence.rules, sequence.think)
    return bans


def _nudge(sequence: Sequence) -> tuple[int, float] | None:
    if sequence.think is None or sequence.rules is None:
        return None
    return thinking.soft_bias(sequence.rules, sequence.think)
