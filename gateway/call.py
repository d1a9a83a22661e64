"""A request as a dialect read it: what to generate, and how the answer is to be told."""

from __future__ import annotations

from dataclasses import dataclass

from tiergate.tiers import ChatRequest

SEEDS = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    request: ChatRequest
    choices: int = 1
    """Independent answers to the same conversation."""
    stream: bool = False
    usage_chunk: bool = False
    """A stream ends with one more event that holds the usage."""
    show_reasoning: bool = True
    """False hides thinking from the answer; it is generated and charged all the same."""
    parallel_calls: bool = True
    """False lets only the first tool call of an answer through."""


def choice_seed(seed: int | None, index: int) -> int | None:
    """The seed of one of several choices: each is reproducible alone, and they differ. Wraps within an int64."""
    if seed is None:
        return None
    return (seed + index + SEEDS // 2) % SEEDS - SEEDS // 2
