"""Encodes plain English the short way: cut into words by a regular expression, and each word looked up.

Byte-level BPE merges within the pieces that its pre-tokenizer makes and never across them, so a text's ids are those
of its pieces. Most pieces of English are tokens themselves. What is not plain, or not ASCII, goes to the tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from tokenizers import Tokenizer

from .detokenize import byte_alphabet

WORDS_KEPT: Final = 8192
LONGEST_KEPT: Final = 32
"""Characters of a word up to which its ids are kept."""
UNKNOWN: Final = 16
"""Words that are looked up one by one; with more of them, and few that are tokens, the tokenizer is faster."""

_ENDINGS = "'(?:[sdmt]|ll|ve|re)"
_GPT2 = rf"{_ENDINGS}| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"
"""What a `ByteLevel` pre-tokenizer cuts by itself (Radford et al. 2019, `encoder.py`), in ASCII."""
_GPT2_DIGITS = rf"{_ENDINGS}| ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s+(?![^\s0-9])|\s+"
"""The same of what lies between single digits: there a digit is an end of text."""
_SPLITS: Final = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": (  # noqa: E501
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{1,3}| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
}
"""What Qwen's and Llama 3's tokenizers cut by, and the same in ASCII."""


class Words:
    """Words of one tokenizer that are tokens, and those of late that are several. Safe in threads."""

    def __init__(self, pattern: str, tokenizer: Tokenizer, plain: Callable[[str], tuple[int, ...]]) -> None:
        """`pattern` cuts ASCII text as the tokenizer does, `plain` encodes any text with it."""
        self._cut = re.compile(pattern, re.ASCII).findall
        self._tokens = _tokens(tokenizer, self._cut)
        self._kept = lru_cache(WORDS_KEPT)(lambda salt, word: plain(word))
        self._plain = plain

    def encode(self, text: str, salt: str) -> Sequence[int]:
        """Ids of ASCII text. What is kept is kept for each `salt` apart, because time tells what was known."""
        words = self._cut(text)
        ids: list[int | None] = list(map(self._tokens.get, words))
        unknown = ids.count(None)
        if not unknown:
            return ids  # type: ignore[return-value]
        if unknown > UNKNOWN + len(ids) // 4:
            return self._plain(text)
        whole: list[int] = []
        for id, word in zip(ids, words, strict=True):
            if id is not None:
                whole.append(id)
            else:
                whole += self._kept(salt, word) if len(word) <= LONGEST_KEPT else self._plain(word)
        return whole


def word_pattern(state: dict[str, Any]) -> str | None:
    """What cuts ASCII text as the pre-tokenizer of a tokenizer.json does, where that is known for certain.

    The tokenizer must be one whose segments are independent; all its added tokens are taken not to occur.
    """
    match state["pre_tokenizer"]:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return _GPT2
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            ],
        }:
            return _GPT2_DIGITS
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(regex)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return _SPLITS.get(regex)
        case _:
            return None


def _tokens(tokenizer: Tokenizer, cut: Callable[[str], list[str]]) -> dict[str, int]:
    """The ASCII words that are one token, by the tokenizer's own word."""
    alphabet = byte_alphabet()
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    found = {}
    for token in tokenizer.get_vocab().keys() - added:
        if (word := _spelt(token, alphabet)) and cut(word) == [word]:
            # One by one: a batch of them all would take a lot of memory, and threads.
            ids = tokenizer.encode(word, add_special_tokens=False).ids
            if len(ids) == 1:
                found[word] = ids[0]
    return found


def _spelt(token: str, alphabet: dict[str, int]) -> str:
    """A token's text, empty where that is not ASCII."""
    try:
        return bytes([alphabet[char] for char in token]).decode("ascii")
    except (KeyError, UnicodeDecodeError):
        return ""
