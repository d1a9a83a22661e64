"""Text cut into words and looked up has the tokenizer's own ids."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from fakes.chat_models import CORPUS, byte_fallback_tokenizer
from tiergate.tiers.encode import PromptEncoder
from tiergate.tiers.words import LONGEST_KEPT, UNKNOWN, Words, word_pattern

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)


def split(regex: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(regex), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


CUTTERS = {
    "gpt2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "digits": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "qwen": lambda: split(QWEN),
    "llama": lambda: split(LLAMA),
}


@cache
def tokenizer(kind: str) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = CUTTERS[kind]()
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    return made


@cache
def words(kind: str) -> Words:
    made = tokenizer(kind)
    pattern = word_pattern(json.loads(made.to_str()))
    assert pattern is not None
    return Words(pattern, made, lambda text: tuple(made.encode(text, add_special_tokens=False).ids))


pieces = st.sampled_from(
    [" ", "  ", "\n", "\r\n", "\t", "\v", "\f", "\x1c", "\x00", "'s", "'S", "'ll", "'", "a", "B", "The", " quick", "1",
     "42", "2026", " 7", ".", "...", " !?", "_", "don't", "x=1", "\n\n\n", " \n ", "think about it"]
)  # fmt: skip
ascii_text = st.lists(pieces, max_size=12).map("".join) | st.text(st.characters(max_codepoint=127), max_size=30)


@pytest.mark.parametrize("kind", CUTTERS)
@given(text=ascii_text)
@settings(max_examples=300)
def test_ids_are_the_tokenizers(kind: str, text: str) -> None:
    for _ in range(2):
        assert list(words(kind).encode(text, "salt")) == tokenizer(kind).encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", CUTTERS)
def test_texts_at_the_bounds_of_what_is_kept(kind: str) -> None:
    strange = "".join(f" qx{chr(97 + number)}" for number in range(UNKNOWN + 5))
    for text in ("z" * (LONGEST_KEPT + 1), "z" * LONGEST_KEPT, strange, strange + " the" * 200, ""):
        assert list(words(kind).encode(text, "")) == tokenizer(kind).encode(text, add_special_tokens=False).ids


def test_what_one_tenant_said_is_not_known_of_another() -> None:
    made = tokenizer("gpt2")
    asked: list[str] = []

    def plain(text: str) -> tuple[int, ...]:
        asked.append(text)
        return tuple(made.encode(text, add_special_tokens=False).ids)

    kept = Words(word_pattern(json.loads(made.to_str())) or "", made, plain)
    for salt in ("a", "a", "b", "b"):
        kept.encode("zzyzx", salt)
    assert asked == ["zzyzx", "zzyzx"]


def test_tokenizers_that_cut_in_other_ways() -> None:
    state = json.loads(tokenizer("gpt2").to_str())
    assert word_pattern(json.loads(byte_fallback_tokenizer().to_str())) is None
    for other in (
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel(False)]),
        split(r"\s+"),
        pre_tokenizers.Whitespace(),
    ):
        made = Tokenizer.from_str(json.dumps(state))
        made.pre_tokenizer = other
        assert word_pattern(json.loads(made.to_str())) is None


@given(text=ascii_text)
def test_added_tokens_that_are_words_stay_what_they_are(text: str) -> None:
    made = Tokenizer.from_str(tokenizer("gpt2").to_str())
    made.add_tokens([AddedToken("  ", normalized=False), AddedToken("quick", normalized=False), "<think>"])
    encoder = PromptEncoder(made, "s3cret")
    assert list(encoder.plain(text)) == made.encode(text, add_special_tokens=False).ids
    assert encoder.encode(text, 1000)[1] == made.encode(text, add_special_tokens=False).ids
