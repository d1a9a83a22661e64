from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiergate.tiers.pieces import Piece
from tiergate.tiers.stops import Stops
from tiergate.tiers.types import TokenLogprob

ALPHABET = "abé"
stop_lists = st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=4, unique=True)
texts = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=8)


def run(stops: Stops, pieces: list[Piece]) -> list[Piece]:
    return [out for piece in pieces for out in stops.feed(piece)] + stops.finish()


def spelled(text: str) -> Piece:
    return Piece(text, (TokenLogprob(text, text.encode(), -1.0),))


@given(stop_lists, texts)
def test_cuts_before_the_string_completed_first(strings: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    ends = [(text.find(one) + len(one), -len(one), one) for one in strings if one in text]
    stops = Stops(strings)
    kept = "".join(piece.text for piece in run(stops, [Piece(piece) for piece in pieces]))
    if ends:
        end, _, string = min(ends)
        assert (kept, stops.matched) == (text[: end - len(string)], string)
    else:
        assert (kept, stops.matched) == (text, None)


@given(stop_lists, texts)
def test_holds_back_less_than_the_longest_string(strings: list[str], pieces: list[str]) -> None:
    stops, sent, left = Stops(strings), 0, 0
    for piece in pieces:
        left += sum(len(out.text) for out in stops.feed(Piece(piece)))
        sent += len(piece)
        if stops.matched is not None:
            return
        assert sent - left < max(map(len, strings))


@given(stop_lists, texts)
def test_log_probabilities_spell_each_released_piece(strings: list[str], pieces: list[str]) -> None:
    plain, told = Stops(strings), Stops(strings)
    expected = "".join(piece.text for piece in run(plain, [Piece(piece) for piece in pieces]))
    out = run(told, [spelled(piece) for piece in pieces])
    assert "".join(piece.text for piece in out) == expected
    assert told.matched == plain.matched
    for piece in out:
        assert b"".join(token.data for token in piece.logprobs) == piece.text.encode()
        assert all(token.token == token.data.decode("utf-8", "replace") for token in piece.logprobs)


def test_a_string_across_tokens() -> None:
    stops = Stops(["beta gamma"])
    out = [[piece.text for piece in stops.feed(Piece(text))] for text in ("alpha ", "be", "ta", " ", "gam", "ma", " x")]
    assert out == [["alpha "], [], [], [], [], [], []]
    assert stops.matched == "beta gamma"


def test_what_does_not_complete_is_released() -> None:
    stops = Stops(["beta gamma"])
    assert [piece.text for piece in stops.feed(Piece("alpha beta g"))] == ["alpha "]
    assert "".join(piece.text for piece in stops.feed(Piece("ray"))) == "beta gray"
    assert stops.finish() == []


def test_the_end_releases_what_was_held() -> None:
    stops = Stops(["beta"])
    stops.feed(Piece("be"))
    assert [piece.text for piece in stops.finish()] == ["be"]


def test_with_log_probabilities_a_token_stays_whole() -> None:
    stops = Stops(["xy"])
    assert stops.feed(spelled("abx")) == []
    assert stops.feed(spelled("z")) == [spelled("abx"), spelled("z")]
