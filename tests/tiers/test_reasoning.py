from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiergate.tiers.calls import Written
from tiergate.tiers.pieces import Piece
from tiergate.tiers.reasoning import Marker, Span, Splitter
from tiergate.tiers.types import TokenLogprob

OPEN, CLOSE = Marker("open", "<think>", 1), Marker("close", "</think>", 2)
CALL, END = Marker("call", "<tool_call>", 3), Marker("end", "</tool_call>", 4)
IDS = (OPEN, CLOSE, CALL, END)
TEXTS = tuple(Marker(marker.role, marker.text) for marker in IDS)
GOOD = '{"name": "f", "arguments": {"x": 1}}'

Token = str | Marker
Result = list[tuple[str, str]]


def split(markers: tuple[Marker, ...], tokens: list[Token], *, thinking: bool = False, complete: bool = True) -> Result:
    """What the tokens come to: (kind, text) with neighbours of one kind joined, calls as (call, name + arguments)."""
    splitter = Splitter(markers, thinking=thinking)
    out: list[Span | Written] = []
    for token in tokens:
        if isinstance(token, Marker):
            out += splitter.mark(token, Piece(token.text))
        else:
            out += splitter.feed(Piece(token))
    out += splitter.finish(complete=complete)
    return merged(out)


def merged(out: list[Span | Written]) -> Result:
    result: Result = []
    for one in out:
        kind, text = ("call", one.name + one.arguments) if isinstance(one, Written) else (one.kind, one.piece.text)
        if result and result[-1][0] == kind != "call":
            result[-1] = (kind, result[-1][1] + text)
        else:
            result.append((kind, text))
    return result


def spell(tokens: list[Token]) -> str:
    return "".join(token.text if isinstance(token, Marker) else token for token in tokens)


scraps = st.sampled_from(["a", "b c", "\n", "\n\n", "<", "</", "think>", "<think", "tool_call>", "{", GOOD, " é"])
scripts = st.lists(scraps | st.sampled_from(IDS), max_size=12)


@given(scripts, st.booleans(), st.booleans(), st.data())
def test_text_markers_do_not_depend_on_the_cuts(
    script: list[Token], thinking: bool, complete: bool, choose: st.DataObject
) -> None:
    text = spell(script)
    cuts = sorted(choose.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = split(TEXTS, [text], thinking=thinking, complete=complete)
    assert split(TEXTS, list(pieces), thinking=thinking, complete=complete) == whole


@given(scripts, st.booleans(), st.booleans(), st.data())
def test_id_markers_do_not_depend_on_the_cuts(
    script: list[Token], thinking: bool, complete: bool, choose: st.DataObject
) -> None:
    letters: list[Token] = []
    for token in script:
        letters += [token] if isinstance(token, Marker) else list(token)
    assert split(IDS, letters, thinking=thinking, complete=complete) == split(
        IDS, script, thinking=thinking, complete=complete
    )


@given(scripts, st.booleans())
def test_with_log_probabilities_the_text_is_the_same(script: list[Token], thinking: bool) -> None:
    def spelled(text: str) -> Piece:
        return Piece(text, (TokenLogprob(text, text.encode(), -1.0),))

    splitter = Splitter(TEXTS, thinking=thinking)
    out = [one for token in script for one in splitter.feed(spelled(token if isinstance(token, str) else token.text))]
    out += splitter.finish(complete=True)
    assert merged(out) == split(TEXTS, [spell(script)], thinking=thinking)
    for one in out:
        if isinstance(one, Span):
            assert b"".join(token.data for token in one.piece.logprobs) == one.piece.text.encode()


@given(scripts, st.booleans(), st.booleans())
def test_no_marker_with_an_id_ever_shows_as_one(script: list[Token], thinking: bool, complete: bool) -> None:
    """What shows of markers is data: text that only looks like one, or what stood in a call that is none."""
    quiet = [token for token in script if isinstance(token, str)]
    shown = "".join(text for kind, text in split((OPEN, CLOSE), script_without_calls(script), thinking=thinking))
    assert len(shown) <= len("".join(quiet))


def script_without_calls(script: list[Token]) -> list[Token]:
    return [token for token in script if token not in (CALL, END)]


CASES: dict[str, tuple[list[Token], bool, Result]] = {
    "plain": (["Hello", " there"], False, [("text", "Hello there")]),
    "opened by the prompt": (["hm", CLOSE, "\n\n", "Yes"], True, [("think", "hm"), ("text", "Yes")]),
    "opened by the model": ([OPEN, "\n", "hm\n", CLOSE, "\nYes\n"], False, [("think", "hm\n"), ("text", "Yes\n")]),
    "opened again": (
        [OPEN, "a", CLOSE, "b ", OPEN, "c", CLOSE, "\nd"],
        False,
        [("think", "a"), ("text", "b "), ("think", "c"), ("text", "\nd")],
    ),
    "opened twice": ([OPEN, OPEN, "a", CLOSE, "b"], False, [("think", "a"), ("text", "b")]),
    "orphan closers": ([CLOSE, "\n\n", "a", CLOSE, "b"], False, [("text", "ab")]),
    "never closed": (["hm"], True, [("think", "hm")]),
    "call": (["I look.", CALL, GOOD, END], False, [("text", "I look."), ("call", 'f{"x": 1}')]),
    "calls": (
        [CALL, "\n" + GOOD + "\n", END, "\n", CALL, GOOD, END],
        False,
        [("call", 'f{"x": 1}'), ("call", 'f{"x": 1}')],
    ),
    "call ends thinking": (["hm", CALL, GOOD, END], True, [("think", "hm"), ("call", 'f{"x": 1}')]),
    "no call after all": ([CALL, "{oops", END, "!"], False, [("text", "<tool_call>{oops</tool_call>!")]),
    "call without its end": ([CALL, GOOD], False, [("call", 'f{"x": 1}')]),
    "stray end": (["a", END, "b"], False, [("text", "ab")]),
    "markers in a call are data": (
        [CALL, '{"name": "f", "arguments": {"x": "', OPEN, CLOSE, '"}}', END, "z"],
        False,
        [("call", 'f{"x": "<think></think>"}'), ("text", "z")],
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("markers", [IDS, TEXTS], ids=["ids", "texts"])
def test_cases(markers: tuple[Marker, ...], name: str) -> None:
    script, thinking, expected = CASES[name]
    tokens = script if markers is IDS else [spell(script)]
    if markers is TEXTS and name == "stray end":
        expected = [("text", "a</tool_call>b")]
    assert split(markers, tokens, thinking=thinking) == expected


def test_text_that_looks_like_a_marker_is_text_where_markers_are_ids() -> None:
    text = "the strings <think>, </think> and <tool_call>{}</tool_call>"
    assert split(IDS, [text], thinking=True) == [("think", text)]
    assert split(IDS, [text]) == [("text", text)]


def test_calls_are_text_where_they_are_not_asked_for() -> None:
    markers = (OPEN, CLOSE)
    assert split(markers, ["<tool_call>" + GOOD + "</tool_call>"]) == [("text", f"<tool_call>{GOOD}</tool_call>")]


def test_a_call_that_was_cut_does_not_come_out() -> None:
    assert split(IDS, ["a", CALL, GOOD], complete=False) == [("text", "a")]
    assert split(IDS, ["a", CALL, '{"name": "f"'], complete=False) == [("text", "a")]


def test_holds_back_only_what_may_become_a_marker() -> None:
    splitter = Splitter(TEXTS)
    assert merged(splitter.feed(Piece("a < b <t"))) == [("text", "a < b ")]
    assert merged(splitter.feed(Piece("ag>"))) == [("text", "<tag>")]
