"""Tokenizers whose text may be encoded in segments, and that the segments make no difference."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.chat_models import byte_fallback_tokenizer, byte_level_tokenizer
from tiergate.tiers.encode import LONGEST_KEPT, PromptEncoder
from tiergate.tiers.segments import independent

MARKERS = ("<think>", "</think>")
TOKENIZER = byte_level_tokenizer(markers=MARKERS)
STATE = json.loads(TOKENIZER.to_str())
ENCODER = PromptEncoder(TOKENIZER, "s3cret")
TEXTS = st.text(alphabet=st.sampled_from("ab \n'1é漢"), max_size=12)


@given(st.lists(st.tuples(st.sampled_from(MARKERS), TEXTS), max_size=6), st.sampled_from("xy"))
def test_segments_make_no_difference(parts: list[tuple[str, str]], salt: str) -> None:
    rendered = "".join(marker + text for marker, text in parts)
    expected = TOKENIZER.encode(rendered, add_special_tokens=False).ids
    for _ in range(2):
        assert ENCODER.encode(ENCODER.rename(rendered), 1000, salt) == (len(expected), expected)


def test_a_segment_too_long_to_keep() -> None:
    rendered = "<think>" + "ab " * LONGEST_KEPT
    expected = TOKENIZER.encode(rendered, add_special_tokens=False).ids
    assert ENCODER.encode(ENCODER.rename(rendered), 100_000) == (len(expected), expected)


def test_what_is_certain() -> None:
    assert independent(STATE)
    assert not independent(json.loads(byte_fallback_tokenizer().to_str()))


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Prepend", "prepend": "_"}},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": True}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"pre_tokenizer": None},
        {"model": STATE["model"] | {"dropout": 0.1}},
        {"model": STATE["model"] | {"type": "Unigram"}},
        {"added_tokens": [*STATE["added_tokens"][:-1], STATE["added_tokens"][-1] | {"rstrip": True}]},
        {"added_tokens": [*STATE["added_tokens"][:-1], STATE["added_tokens"][-1] | {"normalized": True}]},
    ],
)
def test_what_is_not(change: dict[str, Any]) -> None:
    assert not independent(STATE | change)
