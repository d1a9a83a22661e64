from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiergate.tiers.match import Hit, Matcher

ALPHABET = "ab<"
patterns = st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4, unique=True)


def first_completed(patterns: list[str], text: str) -> tuple[int, int] | None:
    """By definition: the earliest end, and among those that end there the longest pattern."""
    for end in range(1, len(text) + 1):
        ending = [index for index, pattern in enumerate(patterns) if text[:end].endswith(pattern)]
        if ending:
            return max(ending, key=lambda index: len(patterns[index])), end
    return None


def longest_beginning(patterns: list[str], text: str) -> int:
    """Length of the longest end of `text` that begins a pattern without being one."""
    return max(
        (size for size in range(len(text) + 1) for one in patterns if size < len(one) and text.endswith(one[:size])),
        default=0,
    )


@given(patterns, st.lists(st.text(ALPHABET, max_size=6), max_size=6))
def test_finds_what_is_completed_first_however_the_text_is_cut(patterns: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    matcher, before = Matcher(patterns), 0
    found = None
    for piece in pieces:
        hit = matcher.feed(piece)
        if hit is not None:
            found = (hit.pattern, before + hit.end)
            break
        before += len(piece)
        assert matcher.held == longest_beginning(patterns, text[:before])
    assert found == first_completed(patterns, text)


def test_begins_afresh_behind_a_hit() -> None:
    matcher = Matcher(["aa"])
    assert matcher.feed("xaaa") == Hit(0, 3)
    assert matcher.held == 0
    assert matcher.feed("a") is None
    assert matcher.feed("a") == Hit(0, 1)


def test_no_patterns_match_nothing() -> None:
    matcher = Matcher([])
    assert matcher.feed("anything") is None
    assert matcher.held == 0


def test_a_hostile_pattern_costs_linear_time() -> None:
    """Each character may fall back through the failure table only as far as earlier ones have climbed."""
    matcher = Matcher(["a" * 200_000 + "b"])
    for _ in range(200):
        assert matcher.feed("a" * 1000 + "c") is None
    assert matcher.held == 0
