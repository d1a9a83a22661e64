"""Guesses from a sequence's own text, against a search through all of it."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from tiergate.engine.draft_ngram import KEY, LONGEST, TRIES, NgramDrafter


def places(ids: list[int]) -> list[int]:
    """Where the latest `KEY` tokens stood before, the latest first: the number of tokens up to there."""
    return [place for place in range(len(ids) - 1, KEY - 1, -1) if ids[place - KEY : place] == ids[-KEY:]]


def match(ids: list[int], place: int) -> int:
    length = 0
    while length < min(place, LONGEST) and ids[place - 1 - length] == ids[-1 - length]:
        length += 1
    return length


def continuation(ids: list[int], place: int, most: int) -> tuple[int, ...]:
    known = list(ids)
    for i in range(most):
        known.append(known[place + i])
    return tuple(known[len(ids) :])


@given(ids=st.lists(st.integers(0, 2), max_size=60), cuts=st.sets(st.integers(0, 60)), most=st.integers(0, 9))
@settings(max_examples=300)
def test_guesses_what_followed_the_longest_match(ids: list[int], cuts: set[int], most: int) -> None:
    drafter = NgramDrafter()
    for cut in sorted(cut for cut in cuts if cut < len(ids)):  # looked at now and then while it grew
        drafter.draft(array("q", ids[:cut]), 3)
    guess = drafter.draft(array("q", ids), most)
    found = places(ids)[:TRIES]
    if not found or most == 0:
        assert guess == ()
        return
    longest = max(match(ids, place) for place in found)
    assert guess in {continuation(ids, place, most) for place in found if match(ids, place) == longest}


def test_without_anything_repeated_there_is_nothing_to_guess() -> None:
    assert NgramDrafter().draft(array("q", range(200)), 8) == ()
    assert NgramDrafter().draft(array("q", [1, 2]), 8) == ()


def test_a_long_text_is_found_again() -> None:
    text = [i * i % 4001 for i in range(4000)]
    drafter = NgramDrafter()
    ids = array("q", text)
    for token in text[1000:1040]:
        ids.append(token)
        drafter.draft(ids, 4)
    assert drafter.draft(ids, 5) == tuple(text[1040:1045])


def test_a_loop_goes_on() -> None:
    assert NgramDrafter().draft(array("q", [9, *[1, 2, 3] * 3]), 7) == (1, 2, 3, 1, 2, 3, 1)


def test_reads_no_token_twice_while_it_has_room() -> None:
    """Counted by an array that counts."""

    class Counting(list[int]):
        read = 0

        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            Counting.read += 1
            return super().__getitem__(at)

    drafter, ids = NgramDrafter(), Counting(range(300))
    drafter.draft(ids, 4)  # type: ignore[arg-type]
    before = Counting.read
    for token in range(1000, 1100):
        ids.append(token)
        drafter.draft(ids, 4)  # type: ignore[arg-type]
    assert Counting.read - before <= 100 * (2 * KEY + 2 * TRIES)
