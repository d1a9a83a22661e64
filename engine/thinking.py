"""Keeps a sequence's thinking within its budget. Pure: token ids in, a state and what must or must not come next out.

    answer ──opener──► think ──closer──► answer        (the closer may be forced: think ─► forcing ─► answer)
    answer, think ──implicit closer──► call ──call closer──► answer

Tokens strictly between the markers draw on one budget for the whole turn. At the limit the hand-off sentence, the
closer and what the template wants behind it are *forced*: assigned after all sampling, so no sampler setting can
prevent them. A tool call ends thinking by itself and is never cut; inside it, markers are data.

Two things may delay a cut, each by a few counted tokens: a character that is not complete (at most 3 tokens, what UTF-8
can need), and a multi-token tool opener that is half written (at most its length less one).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .messages import CHARACTER_GRACE, ThinkLimit

Phase = Literal["answer", "think", "call", "forcing"]
Marker = tuple[int, ...]

SOFT_START = 0.85
"""Share of the soft aim from which the closer is made likelier."""
SOFT_GAIN = 4.0
"""Bias on the closer at the aim itself, in logits; it grows with the square of the way past `SOFT_START`."""


@dataclass(frozen=True, slots=True)
class ThinkRules:
    """What does not change over a turn."""

    limit: ThinkLimit
    eos: frozenset[int]
    max_tokens: int
    window: int
    """Length of the longest marker."""
    call_grace: int
    """Tokens a cut may wait for a tool opener to complete."""
    marks: frozenset[int]
    """All tokens that any marker has."""

    @property
    def slack(self) -> int:
        """Tokens by which a cut may be late."""
        return self.call_grace + (CHARACTER_GRACE if self.limit.partial else 0)


@dataclass(frozen=True, slots=True)
class ThinkState:
    phase: Phase
    used: int = 0
    """Tokens strictly inside, over the whole turn: what the budget is compared with."""
    spent: int = 0
    """Tokens of thinking as reported: markers and hand-off included."""
    generated: int = 0
    tail: Marker = ()
    """Latest tokens of this phase, as many as a marker can have."""
    queue: Marker = ()
    """Tokens still to be forced."""
    behind: int = 0
    """How many of the queue's last tokens come after the closer."""
    cut: bool = False
    """The engine has closed a block, so none may be opened again."""
    fresh: bool = False
    """A closer was the latest word: the answer must not end before it began."""
    late: int = 0
    """Tokens by which the cut is late already."""
    missing: int = 0
    """Bytes that the character which the latest thought ends with still lacks."""


def make_rules(limit: ThinkLimit, eos: tuple[int, ...], max_tokens: int) -> ThinkRules:
    markers = (*limit.closers, *limit.openers, *limit.implicit_closers, *limit.call_closers)
    return ThinkRules(
        limit=limit,
        eos=frozenset(eos),
        max_tokens=max_tokens,
        window=max(map(len, markers)),
        call_grace=max((len(marker) - 1 for marker in limit.implicit_closers), default=0),
        marks=frozenset(token for marker in markers for token in marker),
    )


def start(rules: ThinkRules) -> ThinkState:
    return ThinkState("think" if rules.limit.open else "answer")


def advance(rules: ThinkRules, state: ThinkState, token: int) -> ThinkState:
    """The state behind one more token, however it came about."""
    generated = state.generated + 1
    if state.queue:
        assert token == state.queue[0], "a forced token was not emitted"
        queue = state.queue[1:]
        spent = state.spent + (len(state.queue) > state.behind)
        if queue:
            return replace(state, queue=queue, spent=spent, generated=generated)
        return replace(
            state, phase="answer", queue=(), behind=0, spent=spent, generated=generated, tail=(), fresh=True, late=0
        )
    tail = (*state.tail, token)[-rules.window :]
    if state.phase == "think":
        return _advance_thinking(rules, state, tail, generated)
    limit = rules.limit
    if state.phase == "call":
        if _ends(tail, limit.call_closers):
            return replace(state, phase="answer", tail=(), generated=generated)
        return replace(state, tail=tail, generated=generated)
    if _ends(tail, limit.implicit_closers):
        return replace(state, phase="call", tail=(), generated=generated, fresh=False)
    opener = _ends(tail, limit.openers)
    if opener:
        spent = state.spent + len(opener)
        return replace(state, phase="think", tail=(), generated=generated, spent=spent, fresh=False, late=0)
    return replace(state, tail=tail, generated=generated, fresh=False)


def settle(rules: ThinkRules, state: ThinkState) -> ThinkState:
    """Begin the cut when it is due: the queue of the returned state is then not empty."""
    if state.phase != "think" or not _due(rules, state):
        return state
    if state.tail:
        closing = any(_begun(marker, state.tail) for marker in rules.limit.closers)
        if not closing:
            if state.late < CHARACTER_GRACE and state.missing:
                return state
            if state.late < rules.call_grace and any(_begun(m, state.tail) for m in rules.limit.implicit_closers):
                return state
    return _close(rules, state)


def intercept(rules: ThinkRules, state: ThinkState, token: int) -> ThinkState:
    """The state in which `token`, just sampled, is to be accepted.

    A model that ends its turn while thinking gets its block closed instead, by way of the hand-off, so that an answer
    always follows: the queue is then not empty, and its first token takes the place of `token`.
    """
    if state.phase == "think" and not state.queue and token in rules.eos:
        return _close(rules, state)
    return state


def inert(state: ThinkState) -> bool:
    """Whether the next token, whatever it is, cannot end the sequence."""
    return state.phase == "think" or state.phase == "forcing"


def banned_openers(rules: ThinkRules, state: ThinkState) -> Marker:
    """Tokens that would complete an opener where none may be."""
    if state.phase != "answer" or not rules.limit.openers:
        return ()
    if not state.cut and not _due(rules, state, ahead=1):
        return ()
    return tuple({m[-1] for m in rules.limit.openers if _has_suffix(state.tail, m[:-1])})


def soft_bias(rules: ThinkRules, state: ThinkState) -> tuple[int, float] | None:
    """(token, logits to add) that draws thinking to its end: SOFT_GAIN * x², x = 0 at SOFT_START and 1 at the aim."""
    soft = rules.limit.soft
    if soft is None or state.phase != "think":
        return None
    begin = SOFT_START * soft
    if state.used < begin:
        return None
    closer = rules.limit.closers[0]
    x = (state.used - begin) / max(1.0, soft - begin)
    return closer[_begun(closer, state.tail)], SOFT_GAIN * x * x


def calm(rules: ThinkRules, state: ThinkState) -> int | None:
    """How many tokens, 1 or more, may be drawn in turn before these rules have something new to say; None: any number.

    That is, with no token among them but the last a mark or an end of sequence: `settle` begins no cut, and neither
    `banned_openers` nor `soft_bias` nor `fresh` changes.
    """
    if state.queue or state.fresh or (state.tail and state.tail[-1] in rules.marks):
        return 1
    limit = rules.limit
    left = rules.max_tokens - state.generated - _cost(limit) - max(0, rules.slack - state.late) - limit.answer_reserve
    if state.phase == "think":
        bounds = [left] if limit.answer_reserve > 0 else []
        if limit.hard is not None:
            bounds.append(limit.hard - state.used)
        if limit.soft is not None:
            bounds.append(math.ceil(SOFT_START * limit.soft - state.used))
        return max(1, min(bounds)) if bounds else None
    if state.phase == "answer" and limit.openers and not state.cut and not _due(rules, state, ahead=1):
        return max(1, left - 1) if limit.answer_reserve > 0 else None
    return None


def advance_calmly(rules: ThinkRules, state: ThinkState, tokens: Sequence[int]) -> ThinkState:
    """The state behind `tokens`, fewer than `calm` tells, none of them a mark or an end of sequence."""
    if not tokens:
        return state
    count = len(tokens)
    generated = state.generated + count
    tail = (*state.tail, *tokens)[-rules.window :]
    if state.phase != "think":
        return replace(state, generated=generated, tail=tail, fresh=False)
    limit, missing = rules.limit, state.missing
    if limit.partial:
        for token in tokens:
            inside = limit.continuing.get(token, 0)
            missing = max(0, missing - inside) if inside else limit.partial.get(token, 0)
    used, spent = state.used + count, state.spent + count
    return replace(state, generated=generated, used=used, spent=spent, tail=tail, late=0, missing=missing, fresh=False)


def _advance_thinking(rules: ThinkRules, state: ThinkState, tail: Marker, generated: int) -> ThinkState:
    limit = rules.limit
    closer = _ends(tail, limit.closers)
    if closer:  # its earlier tokens were taken for thoughts
        used = state.used - (len(closer) - 1)
        return replace(
            state, phase="answer", used=used, spent=state.spent + 1, generated=generated, tail=(), fresh=True, late=0
        )
    call = _ends(tail, limit.implicit_closers)
    if call:
        before = len(call) - 1
        return replace(
            state,
            phase="call",
            used=state.used - before,
            spent=state.spent - before,
            generated=generated,
            tail=(),
            late=0,
        )
    token = tail[-1]
    inside = limit.continuing.get(token, 0)
    return replace(
        state,
        used=state.used + 1,
        spent=state.spent + 1,
        generated=generated,
        tail=tail,
        late=state.late + 1 if _due(rules, state) else 0,
        missing=max(0, state.missing - inside) if inside else limit.partial.get(token, 0),
        fresh=False,
    )


def _due(rules: ThinkRules, state: ThinkState, ahead: int = 0) -> bool:
    """Whether no further thought fits, `ahead` tokens from here: the budget is used up, or the answer's reserve next.

    The reserve is kept even if the cut comes late, so here the slack is spent beforehand.
    """
    limit = rules.limit
    if limit.hard is not None and state.used >= limit.hard:
        return True
    if limit.answer_reserve <= 0:
        return False
    left = rules.max_tokens - state.generated - ahead
    return left - _cost(limit) - max(0, rules.slack - state.late) <= limit.answer_reserve


def _cost(limit: ThinkLimit) -> int:
    """Tokens to set aside for closing a block: the longest closer, for one that is half written may be any."""
    return len(limit.handoff) + max(map(len, limit.closers)) + len(limit.after)


def _close(rules: ThinkRules, state: ThinkState) -> ThinkState:
    """Queue what closes the block. The hand-off is said only after a thought, and never at the answer's expense."""
    limit = rules.limit
    left = rules.max_tokens - state.generated
    begun = 0
    closer = limit.closers[0]
    for marker in limit.closers:
        length = _begun(marker, state.tail)
        if length > begun:
            begun, closer = length, marker
    words: Marker = ()
    if not begun and state.used and left - _cost(limit) >= limit.answer_reserve:
        words = limit.handoff
    after = limit.after if left > len(closer) - begun + len(limit.after) else ()
    return replace(
        state,
        phase="forcing",
        used=state.used - begun,
        queue=(*words, *closer[begun:], *after),
        behind=len(after),
        tail=(),
        cut=True,
        missing=0,
    )


def _ends(tail: Marker, markers: tuple[Marker, ...]) -> Marker:
    """The marker that has just been completed, or an empty one."""
    for marker in markers:
        if _has_suffix(tail, marker):
            return marker
    return ()


def _has_suffix(tail: Marker, marker: Marker) -> bool:
    return not marker or tail[-len(marker) :] == marker


def _begun(marker: Marker, tail: Marker) -> int:
    """How many of the marker's first tokens end `tail`, all of them excluded."""
    for length in range(min(len(marker) - 1, len(tail)), 0, -1):
        if tail[-length:] == marker[:length]:
            return length
    return 0
