"""Tokens to events: the same however many tokens come at once, and aligned with their log-probabilities."""

from __future__ import annotations

from functools import cache
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from fakes.chat_models import CORPUS, byte_fallback_tokenizer, byte_level_tokenizer
from tiergate.engine import messages
from tiergate.tiers import Called, Event, Text, Think, ToolCall
from tiergate.tiers.assemble import Assembler
from tiergate.tiers.detokenize import Vocabulary
from tiergate.tiers.reasoning import Marker

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
END = 2
CALL = '{"name": "f", "arguments": {"x": 1}}'


@cache
def made() -> tuple[Tokenizer, Vocabulary]:
    tokenizer = byte_level_tokenizer(markers=MARKERS)
    return tokenizer, Vocabulary(tokenizer)


def markers(ids: bool) -> list[Marker]:
    tokenizer, _ = made()
    roles = ("open", "close", "call", "end")
    return [
        Marker(role, text, tokenizer.token_to_id(text) if ids else None)  # type: ignore[arg-type]
        for role, text in zip(roles, MARKERS, strict=True)
    ]


def encoded(text: str) -> list[int]:
    return list(made()[0].encode(text).ids)


def assemble(
    ids: list[int],
    cuts: list[int] | None = None,
    *,
    logprobs: bool = False,
    ids_mark: bool = True,
    thinking: bool = False,
    stop: tuple[str, ...] = (),
    complete: bool = True,
    end: int | None = END,
) -> tuple[list[Event], Assembler]:
    numbers = count()
    assembler = Assembler(
        made()[1],
        markers(ids_mark),
        thinking=thinking,
        stop=stop,
        enders=frozenset((END, encoded(".")[0])),
        new_call_id=lambda: f"call_{next(numbers)}",
    )
    events: list[Event] = []
    edges = [0, *(cuts if cuts is not None else range(1, len(ids))), len(ids)]
    for start, stop_at in pairwise(edges):
        batch = ids[start:stop_at]
        told = [messages.Logprob(-float(id), [(id, -float(id))]) for id in batch] if logprobs else None
        events += assembler.feed(batch, told)
    events += assembler.finish(complete=complete, end=end)
    return events, assembler


def answer(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def thought(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Think))


def calls(events: list[Event]) -> list[Called]:
    return [event for event in events if isinstance(event, Called)]


scraps = st.sampled_from(["Hello there. ", "日本", "😀", "\n\n", "stop", "st", "op", "a < b", "café", *MARKERS, CALL])
token_lists = st.lists(scraps, max_size=8).map(lambda scraps: [id for text in scraps for id in encoded(text)])
broken = st.lists(st.integers(0, 300), max_size=20)
stops = st.sampled_from([(), ("stop",), ("本", "op"), ("\n\n", "there. a")])


@given(token_lists | broken, st.booleans(), st.booleans(), stops, st.booleans(), st.data())
def test_batches_do_not_matter(
    ids: list[int], logprobs: bool, thinking: bool, stop: tuple[str, ...], by_id: bool, choose: st.DataObject
) -> None:
    cuts = sorted(choose.draw(st.sets(st.integers(0, len(ids)), max_size=6)))
    options = {"logprobs": logprobs, "thinking": thinking, "stop": stop, "ids_mark": by_id}
    one_by_one, first = assemble(ids, **options)  # type: ignore[arg-type]
    batched, second = assemble(ids, cuts, **options)  # type: ignore[arg-type]
    for read in (answer, thought, calls):
        assert read(one_by_one) == read(batched)
    assert (first.stopped, first.called, first.taken) == (second.stopped, second.called, second.taken)
    if first.stopped is None:
        assert first.thinking_tokens == second.thinking_tokens


@given(token_lists | broken, st.booleans(), stops, st.booleans())
def test_log_probabilities_change_nothing_and_spell_the_answer(
    ids: list[int], thinking: bool, stop: tuple[str, ...], by_id: bool
) -> None:
    quiet, _ = assemble(ids, thinking=thinking, stop=stop, ids_mark=by_id)
    told, _ = assemble(ids, thinking=thinking, stop=stop, ids_mark=by_id, logprobs=True)
    assert (answer(told), thought(told), calls(told)) == (answer(quiet), thought(quiet), calls(quiet))
    for event in told:
        if isinstance(event, Text):
            assert b"".join(token.data for token in event.logprobs) == event.text.encode()


@given(st.lists(st.sampled_from(CORPUS), max_size=3))
def test_plain_text_is_what_decoding_at_once_gives(texts: list[str]) -> None:
    ids = [id for text in texts for id in encoded(text) if id not in {encoded(one)[0] for one in MARKERS}]
    events, _ = assemble([*ids, END])
    assert answer(events) == made()[0].decode(ids)


def test_the_token_that_ends_it_is_not_part_of_the_answer() -> None:
    dot = encoded(".")[0]
    ids = [*encoded("It is so"), dot]
    assert answer(assemble(ids, end=dot)[0]) == "It is so"
    assert answer(assemble(ids, end=None, complete=False)[0]) == "It is so."
    assert answer(assemble([*ids, *encoded(" Yes"), dot], end=dot)[0]) == "It is so. Yes"
    (text,) = (event for event in assemble(ids, [], end=dot, logprobs=True)[0] if isinstance(event, Text))
    assert b"".join(token.data for token in text.logprobs) == b"It is so"


def test_log_probabilities_tell_rivals() -> None:
    ids = [*encoded("A"), END]
    (event,) = assemble(ids, logprobs=True)[0]
    assert isinstance(event, Text)
    (token,) = event.logprobs
    assert (token.token, token.data, token.logprob) == ("A", b"A", -float(ids[0]))
    assert token.top == (("A", b"A", -float(ids[0])),)


def test_stop_strings_do_not_apply_to_thinking() -> None:
    ids = encoded("<think>do stop it</think>\n\nplease stop it")
    events, assembler = assemble(ids, stop=("stop",))
    assert (thought(events), answer(events), assembler.stopped) == ("do stop it", "please ", "stop")


def test_nothing_comes_behind_a_stop_string() -> None:
    ids = encoded(f"stop<think>x</think><tool_call>{CALL}</tool_call>y")
    events, assembler = assemble(ids, stop=("stop",))
    assert (events, assembler.called) == ([], False)


def test_calls_are_numbered() -> None:
    ids = encoded(f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>")
    events, assembler = assemble(ids)
    assert events == [Called(index, ToolCall(id=f"call_{index}", name="f", arguments='{"x": 1}')) for index in range(2)]
    assert assembler.called


def test_a_thought_cut_inside_a_character_shows_no_half_of_it() -> None:
    smile = encoded("😀")
    ids = [*encoded("<think>so"), *smile[:-1], *encoded("</think>yes")]
    events, _ = assemble(ids, logprobs=True)
    assert (thought(events), answer(events)) == ("so", "yes")


@pytest.mark.parametrize("logprobs", [False, True])
def test_an_answer_cut_inside_a_character_shows_no_half_of_it(logprobs: bool) -> None:
    smile = encoded("😀")
    assert len(smile) > 1
    for cut in (smile[:1], smile[:-1]):
        events, _ = assemble([*encoded("yes"), *cut], logprobs=logprobs, complete=False)
        assert answer(events) == "yes"
        spelled = b"".join(token.data for event in events if isinstance(event, Text) for token in event.logprobs)
        assert spelled == (b"yes" if logprobs else b"")


def test_thinking_tokens_are_counted_with_their_markers() -> None:
    inside = encoded("hm hm")
    ids = [*encoded("<think>"), *inside, *encoded("</think>yes")]
    assert assemble(ids)[1].thinking_tokens == len(inside) + 2
    assert assemble(ids[1:], thinking=True)[1].thinking_tokens == len(inside) + 1
    assert assemble(encoded("</think>yes"))[1].thinking_tokens == 0


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_leading_space_that_decoding_drops(logprobs: bool) -> None:
    tokenizer = byte_fallback_tokenizer()
    ids = tokenizer.encode("The quick").ids
    assembler = Assembler(
        Vocabulary(tokenizer), (), thinking=False, stop=(), enders=frozenset(), new_call_id=lambda: ""
    )
    told = [messages.Logprob(-1.0, [])] * len(ids) if logprobs else None
    (event,) = [*assembler.feed(ids, told), *assembler.finish(complete=True, end=None)]
    assert isinstance(event, Text)
    assert event.text == "The quick"
    assert b"".join(token.data for token in event.logprobs) == (b"The quick" if logprobs else b"")
