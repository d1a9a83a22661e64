from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from fakes.chat_models import CORPUS, byte_fallback_tokenizer, byte_level_tokenizer, metaspace_tokenizer
from tiergate.tiers.detokenize import Detokenizer, Vocabulary
from tiergate.tiers.errors import ModelMissing

MAKERS = {
    "byte level": byte_level_tokenizer,
    "byte fallback": byte_fallback_tokenizer,
    "metaspace": metaspace_tokenizer,
}


@cache
def made(kind: str) -> tuple[Tokenizer, Vocabulary]:
    tokenizer = MAKERS[kind]()
    return tokenizer, Vocabulary(tokenizer)


def pieces(vocabulary: Vocabulary, ids: list[int]) -> list[str]:
    stream = Detokenizer(vocabulary)
    return [*(stream.push(id) for id in ids), stream.flush()]


@pytest.mark.parametrize("kind", MAKERS)
@given(text=st.text() | st.sampled_from(CORPUS))
def test_text_comes_back_as_decoded_at_once(kind: str, text: str) -> None:
    tokenizer, vocabulary = made(kind)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert "".join(pieces(vocabulary, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["byte level", "metaspace"])
@given(data=st.data())
def test_any_ids_come_back_as_decoded_at_once(kind: str, data: st.DataObject) -> None:
    """Broken characters and special tokens included."""
    tokenizer, vocabulary = made(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() + 5), max_size=30))
    assert "".join(pieces(vocabulary, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
@given(text=st.text("aß日😀 é\u0301", max_size=20))
def test_no_piece_holds_half_a_character(kind: str, text: str) -> None:
    tokenizer, vocabulary = made(kind)
    out = pieces(vocabulary, tokenizer.encode(text, add_special_tokens=False).ids)
    assert all("\ufffd" not in piece for piece in out)


@pytest.mark.parametrize("kind", MAKERS)
@given(text=st.text(max_size=30))
def test_the_tokens_bytes_spell_the_text(kind: str, text: str) -> None:
    tokenizer, vocabulary = made(kind)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    data = b"".join(map(vocabulary.data, ids)).decode()
    assert data.lstrip(" ") == "".join(pieces(vocabulary, ids)).lstrip(" ")


def test_a_broken_end_is_one_replacement_character() -> None:
    tokenizer, vocabulary = made("byte level")
    ids = tokenizer.encode("a😀").ids
    stream = Detokenizer(vocabulary)
    assert [stream.push(id) for id in ids[:-1]] == ["a", *[""] * (len(ids) - 2)]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""
    assert stream.push(ids[0]) == "a"


def test_special_tokens_add_nothing_but_have_a_spelling() -> None:
    tokenizer, vocabulary = made("byte level")
    end = tokenizer.token_to_id("<|im_end|>")
    assert (vocabulary.data(end), vocabulary.spelling(end)) == (b"", b"<|im_end|>")
    assert vocabulary.data(10**9) == vocabulary.spelling(10**9) == b""


def test_byte_fallback_pieces_are_bytes() -> None:
    tokenizer, vocabulary = made("byte fallback")
    ids = tokenizer.encode("😀").ids
    assert b"".join(map(vocabulary.data, ids)).endswith("😀".encode())
    assert len(ids) >= 4


def test_fragments_are_told_by_the_bytes_they_lack_and_bring() -> None:
    tokenizer, vocabulary = made("byte level")
    partial, continuing = vocabulary.fragments()
    for id in range(260):
        data = vocabulary.data(id)
        if len(data) == 1:
            assert (id in partial) == (0xC2 <= data[0] <= 0xF4), data
            assert continuing.get(id, 0) == (0x80 <= data[0] <= 0xBF), data
    assert not any(vocabulary.text(id) is not None for id in (*partial, *continuing))
    missing = 0
    for id in tokenizer.encode("a😀é😀 ﷽").ids:
        missing = max(0, missing - continuing[id]) if id in continuing else partial.get(id, 0)
        whole = not missing
    assert whole, "the text ends with a character"


def test_an_unknown_decoder_is_refused() -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ModelMissing, match="WordPiece"):
        Vocabulary(tokenizer)
