from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiergate.tiers.pieces import HoldBack, Piece, cut
from tiergate.tiers.types import TokenLogprob

ALPHABET = "aé日😀"


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    """Text spelled by tokens that divide its bytes anywhere."""
    text = draw(st.text(ALPHABET, min_size=1, max_size=6))
    data = text.encode()
    ends = sorted(draw(st.sets(st.integers(1, len(data)), max_size=4)) | {len(data)})
    starts = [0, *ends[:-1]]
    tokens = (data[start:end] for start, end in zip(starts, ends, strict=True))
    return Piece(text, tuple(TokenLogprob(token.decode("utf-8", "replace"), token, -1.0) for token in tokens))


def data(piece: Piece) -> bytes:
    return b"".join(token.data for token in piece.logprobs)


@given(pieces(), st.integers(0, 7))
def test_both_sides_of_a_cut_are_spelled_by_their_tokens(piece: Piece, at: int) -> None:
    head, tail = cut(piece, at)
    assert (head.text, tail.text) == (piece.text[:at], piece.text[at:])
    assert (data(head), data(tail)) == (head.text.encode(), tail.text.encode())
    assert all(token.data for token in (*head.logprobs, *tail.logprobs))


@given(st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=5), st.data())
def test_release_keeps_the_last_characters(texts: list[str], choose: st.DataObject) -> None:
    held, whole = HoldBack(), "".join(texts)
    for text in texts:
        held.push(Piece(text))
    keep = choose.draw(st.integers(0, len(whole)))
    out = "".join(piece.text for piece in held.release(keep))
    assert out == whole[: len(whole) - keep]
    assert held.length == keep
    length = choose.draw(st.integers(0, keep))
    assert "".join(piece.text for piece in held.take(length)) == whole[len(out) : len(out) + length]
    assert "".join(piece.text for piece in held.release(0)) == whole[len(out) + length :]


@given(st.lists(pieces(), min_size=1, max_size=5), st.data())
def test_release_never_divides_a_spelled_piece(spelled: list[Piece], choose: st.DataObject) -> None:
    held = HoldBack()
    for piece in spelled:
        held.push(piece)
    keep = choose.draw(st.integers(0, held.length))
    out = held.release(keep)
    assert out == spelled[: len(out)]
    assert held.length >= keep
    assert len(out) == len(spelled) or held.length - len(spelled[len(out)].text) < keep
