"""What every contender is given: the same token ids, greedy, fixed lengths. Standard library only: workers import it.

Prompts are cut from the shipped text at places that never repeat, so that no cache knows one from an earlier play; the
shared prefix, which it should know, is the exception.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a play."""

    key: int
    prompt: list[int]
    new_tokens: int
    after: tuple[int, int] | None = None
    """(key, n): sent when that request has given its n-th token. None: sent at the start."""
    background: bool = False
    """Its tokens are work for the others to bear: inter-token latencies are those of the rest."""


@dataclass(frozen=True, slots=True)
class Play:
    """Requests that are measured together, and those that go before them, unmeasured."""

    requests: tuple[Request, ...]
    before: tuple[Request, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the benchmark; several plays give a median."""

    name: str
    title: str
    plays: tuple[Play, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work there is."""

    new_tokens: int = 128
    repeats: int = 3
    """Plays of the scenarios that have but one request."""
    few: int = 16
    many: int = 64
    prefix: int = 512
    long: int = 1024


QUICK = Sizes(new_tokens=16, repeats=1, many=16)
"""To see that everything works."""

MIXED_STREAMS = 16
MIXED_ARRIVALS = (0.2, 0.4, 0.6, 0.8)
"""Long prompts arrive when the first stream has given this share of its tokens."""
NAMES = ("one", "ttft", "few", "many", "prefix", "mixed")


class Prompts:
    """Cuts prompts out of one text, each from a start that no other has."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text = list(text)
        self._starts = _starts(len(self._text))

    def cut(self, length: int) -> list[int]:
        """`length` ids; the text goes round. Raises StopIteration when every start was used."""
        start = next(self._starts)
        rounds = 1 + (start + length) // len(self._text)
        return (self._text * (rounds + 1))[start : start + length]


def _starts(size: int) -> Iterator[int]:
    """Every place of a text once, neighbours far apart."""
    stride = next(step for step in (389, 367, 1) if size % step or step == 1)
    return ((index * stride) % size for index in range(size))


def scenarios(text: Sequence[int], sizes: Sizes) -> dict[str, Scenario]:
    """All scenarios over the ids of a text, by name, in the order of `NAMES`."""
    prompts = Prompts(text)
    new = sizes.new_tokens

    def single(length: int, new_tokens: int) -> tuple[Play, ...]:
        return tuple(Play((Request(0, prompts.cut(length), new_tokens),)) for _ in range(sizes.repeats))

    def crowd(count: int) -> tuple[Play, ...]:
        lengths = [50 + (index * 137) % 301 for index in range(count)]
        return (Play(tuple(Request(key, prompts.cut(length), new) for key, length in enumerate(lengths))),)

    def shared() -> tuple[Play, ...]:
        prefix = prompts.cut(sizes.prefix)
        asked = [Request(key, prefix + prompts.cut(16 + (key * 29) % 65), new) for key in range(sizes.many)]
        return (Play(tuple(asked), before=(Request(0, prefix + prompts.cut(16), 1),)),)

    def mixed() -> tuple[Play, ...]:
        streams = [Request(key, prompts.cut(64), new) for key in range(MIXED_STREAMS)]
        arrivals = [
            Request(MIXED_STREAMS + n, prompts.cut(sizes.long), 8, after=(0, max(1, int(share * new))), background=True)
            for n, share in enumerate(MIXED_ARRIVALS)
        ]
        return (Play((*streams, *arrivals)),)

    made = (
        Scenario("one", f"one stream, prompt 128, {new} out", single(128, new)),
        Scenario("ttft", f"first token of a prompt of {sizes.long}", single(sizes.long, 1)),
        Scenario("few", f"{sizes.few} at once, prompts 50-350, {new} out", crowd(sizes.few)),
        Scenario("many", f"{sizes.many} at once, prompts 50-350, {new} out", crowd(sizes.many)),
        Scenario(
            "prefix",
            f"{sizes.many} at once with a shared prefix of {sizes.prefix}, seen once before, 16-80 of their own",
            shared(),
        ),
        Scenario(
            "mixed",
            f"{MIXED_STREAMS} streams, prompt 64, {len(MIXED_ARRIVALS)} prompts of {sizes.long} arriving meanwhile",
            mixed(),
        ),
    )
    return {scenario.name: scenario for scenario in made}


def warm_up(text: Sequence[int]) -> Play:
    """A little of everything; its prompts are reversed, so that they are nobody else's."""
    prompts = Prompts(list(reversed(text)))
    return Play(tuple(Request(key, prompts.cut(length), 8) for key, length in enumerate((200, 90, 400))))


def first_word(text: Sequence[int]) -> Request:
    """The request that a fresh process is timed to the first token of."""
    return replace(warm_up(text).requests[0], prompt=list(reversed(text))[-32:], new_tokens=1)
