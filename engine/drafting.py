"""Gives the sequences of a lane drafts from their own text where that pays, and learns how good they were."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import NamedTuple

from .draft_gate import MOST, PRIOR, learn, share_out
from .draft_ngram import NgramDrafter
from .sequence import Sequence

PATIENCE = 8
"""Most tokens between two looks at the text of a sequence in which nothing was found."""
PROBE_EVERY = 64
"""Tokens after which a sequence whose drafts do not pay is tried again."""
PROBE = 2
"""Drafts of such a trial."""
_HOPE = 0.9
"""The rate at which drafts would have to pay for a trial to make sense."""


@dataclass(slots=True, eq=False)
class _Habit:
    """What is known of one sequence."""

    drafter: NgramDrafter = field(default_factory=NgramDrafter)
    rate: float = PRIOR
    look_at: int = 0
    """Number of tokens from which its text is looked at again."""
    pause: int = PATIENCE
    """Tokens between two looks while nothing is found; less than `PATIENCE` shortly after something was."""


class Drafting:
    """Owns what a lane knows of its sequences' habits."""

    def __init__(self) -> None:
        self.drafted = 0
        """Tokens drafted and verified so far."""
        self.right = 0
        """Of these, the ones that came out."""
        self._habits: dict[int, _Habit] = {}

    def propose(self, sequences: Rows[Sequence], seconds: Callable[[int], float], overhead: float = 0.0) -> int:
        """Draft for sequences that decode, each a token from closing its gap: see `Sequence.drafts`.

        `seconds` is the time of a step with that many rows, `overhead` what a step with drafts takes more, seconds.
        Returns how many tokens all may draw before someone should be looked at again, 1 or more, or 0 when there are
        drafts to be verified now.
        """
        bidders: list[_Bidder] = []
        hot: list[tuple[Sequence, _Habit]] = []
        for sequence in sequences:
            habit = self._habits.get(sequence.order)
            if habit is None:
                habit = self._habits[sequence.order] = _Habit()
            known = len(sequence.ids)
            if known >= habit.look_at:
                guess = self._guess(sequence, habit)
                if guess:
                    bidders.append(_Bidder(sequence, habit, guess))
                else:
                    habit.look_at, habit.pause = known + habit.pause, min(PATIENCE, 2 * habit.pause)
            if habit.pause < PATIENCE:
                hot.append((sequence, habit))
        if bidders and _grant(bidders, len(sequences), seconds, overhead):
            return 0
        return max(1, min((habit.look_at - len(sequence.ids) for sequence, habit in hot), default=PROBE_EVERY))

    def learn(self, sequence: Sequence, drafted: int, right: int) -> None:
        """Of `drafted` tokens, verified in a step, the first `right` came out."""
        habit = self._habits[sequence.order]
        habit.rate = learn(habit.rate, drafted, right)
        self.drafted += drafted
        self.right += right

    def forget(self, sequence: Sequence) -> None:
        """It has ended."""
        self._habits.pop(sequence.order, None)

    def _guess(self, sequence: Sequence, habit: _Habit) -> tuple[int, ...]:
        """What may follow, as far as a row's parameters can be told ahead."""
        guess = habit.drafter.draft(sequence.ids, min(MOST, sequence.draft_room))
        for place, token in enumerate(guess):
            if token in sequence.watch:
                return guess[:place]
        return guess


class _Bidder(NamedTuple):
    sequence: Sequence
    habit: _Habit
    guess: tuple[int, ...]


def _grant(bidders: Rows[_Bidder], rows: int, seconds: Callable[[int], float], overhead: float) -> bool:
    """Share drafts out; whether anyone got any."""
    sizes = share_out([(habit.rate, len(guess)) for _, habit, guess in bidders], rows, seconds, overhead=overhead)
    given = False
    for (sequence, habit, guess), size in zip(bidders, sizes, strict=True):
        if not size:
            habit.look_at, habit.pause = len(sequence.ids) + PROBE_EVERY, PATIENCE
            size = share_out([(_HOPE, min(PROBE, len(guess)))], rows, seconds, overhead=overhead)[0]
        else:
            habit.pause = 1
        if size:
            sequence.drafts = guess[:size]
            given = True
    return given
