"""Says whether the tier that is answering stays or a deeper one takes over (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["hold", "commit", "climb"]
"""`hold`: wait for more; `commit`: this tier's answer it is; `climb`: start again on the next tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EscalationRule:
    hold_tokens: int = 32
    """Tokens of the answer that are looked at before it may leave."""
    hold_seconds: float = 1.5
    """Longest time to hold text back, so that a slow tier does not cost the reader patience."""
    min_logprob: float = -3.0
    """Mean log-probability, in nats a token, below which the tier does not know what it says."""
    judged_tokens: int = 8
    """Tokens before the mean says anything."""
    repeats: int = 6
    """Times that a phrase stands behind itself before the answer counts as degenerate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """What is known of an answer of which nothing has left yet."""

    text: str
    tokens: int
    """Pieces of the answer so far, a token each or a little more."""
    seconds: float
    """Since its first text."""
    logprobs: tuple[float, ...] = ()
    """Of the answer's tokens, where they are known."""
    called: bool = False
    """It calls a tool."""
    finished: bool = False


def decide(signals: Signals, rule: EscalationRule) -> Verdict:
    if signals.called:
        return "commit"
    if signals.finished and not signals.text.strip():
        return "climb"
    if repeats(signals.text, rule.repeats):
        return "climb"
    known = signals.logprobs
    if len(known) >= rule.judged_tokens and sum(known) / len(known) < rule.min_logprob:
        return "climb"
    if signals.finished or signals.tokens >= rule.hold_tokens or signals.seconds >= rule.hold_seconds:
        return "commit"
    return "hold"


def repeats(text: str, times: int) -> bool:
    """Whether `text` ends with a phrase of one to twelve words that stands there `times` times in a row.

    A single word counts only if it is one: dots, dashes and digits repeat for good reasons.
    """
    words = text.split()
    for length in range(1, min(12, len(words) // times) + 1):
        phrase = words[-length:]
        if length == 1 and not phrase[0].strip(".,;:!?").isalpha():
            continue
        if words[-length * times :] == phrase * times:
            return True
    return False
