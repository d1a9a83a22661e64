"""Decides whether guessing ahead pays, and how far. Pure.

A step over n rows takes a time that grows with n, slowly while weights are what it reads. g drafts of a sequence that
are each right with probability a, given those before them, bring A(g) = 1 + a + ... + a^g tokens in place of one, for g
rows more. They pay where the tokens of the step per second of the step rise (for one sequence: A / (c g + V) > 1 with c
the cost of a draft and V that of the rows, in plain steps).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

SIZES = (1, 2, 4, 8)
"""Drafts that a sequence may be given in a step, besides none."""
MOST = SIZES[-1]
GAIN = 1.05
"""Least ratio of speeds worth the trouble: estimates are noisy, and a step with drafts has to be planned."""
PRIOR = 0.5
"""Rate of a sequence that nothing is known of."""
_WEIGHT = 0.12
"""Of the latest draft in the average."""


def learn(rate: float, drafted: int, right: int) -> float:
    """The rate behind a step in which the first `right` of `drafted` tokens were right.

    It is the share of drafts that were, of those behind right ones only; the latest weigh most.
    """
    rate = 1 - (1 - rate) * (1 - _WEIGHT) ** right
    return rate if right == drafted else rate * (1 - _WEIGHT)


def expected(rate: float, size: int) -> float:
    """Tokens that a step is expected to bring a sequence with `size` drafts: A of the module's text."""
    total = power = 1.0
    for _ in range(size):
        power *= rate
        total += power
    return total


def share_out(
    bids: Sequence[tuple[float, int]],
    rows: int,
    seconds: Callable[[int], float],
    *,
    overhead: float = 0.0,
    draft_seconds: float = 0.0,
) -> list[int]:
    """How many drafts each bidder, a (rate, drafts offered), gets in a step of `rows` rows without any.

    Best rates first, each given what raises the tokens per second of the step most, if anything does. `seconds` is the
    time of a step over that many rows, `overhead` what it takes more when there are any drafts in it, `draft_seconds`
    the time of making a draft.
    """
    sizes = [0] * len(bids)
    tokens, time, spent = float(rows), seconds(rows), overhead
    for index in sorted(range(len(bids)), key=lambda index: -bids[index][0]):
        rate, offered = bids[index]
        best, most = 0, tokens / time * GAIN
        for size in SIZES:
            if size > offered:
                break
            speed = (tokens + expected(rate, size) - 1) / (seconds(rows + size) + spent + draft_seconds * size)
            if speed > most:
                best, most = size, speed
        if best:
            sizes[index] = best
            rows += best
            tokens += expected(rate, best) - 1
            spent += draft_seconds * best
            time = seconds(rows) + spent
    return sizes
