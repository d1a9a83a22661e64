from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiergate.gateway.body import check_content_type, check_encoding, parse_object
from tiergate.gateway.errors import BadRequest, UnsupportedEncoding

TEXT = st.text(st.characters(codec="utf-8"))
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, JSON, max_size=6))
def test_whatever_json_writes_is_read_back(value: dict[str, Any]) -> None:
    assert parse_object(json.dumps(value).encode()) == value
    assert parse_object(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary(max_size=64))
def test_other_bytes_are_refused_and_nothing_else_happens(raw: bytes) -> None:
    try:
        code = "fine" if isinstance(parse_object(raw), dict) else ""
    except BadRequest as error:
        code = error.code
    assert code


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (b"", "empty_body", None),
        (b"   ", "invalid_json", None),
        (b"{", "invalid_json", None),
        (b"[]", "invalid_type", None),
        (b"null", "invalid_type", None),
        (b'"text"', "invalid_type", None),
        (b'{"a":1}{"b":2}', "invalid_json", None),
        (b"\xef\xbb\xbf{}", "invalid_json", None),
        (b'{"a":"\xff"}', "invalid_json", None),
        (b'{"a":"\\ud800"}', "invalid_json", None),
        (b'{"a":"\\udc00 x"}', "invalid_json", None),
        (b'{"a":' * 129 + b"1" + b"}" * 129, "invalid_json", None),
        (b'{"a":' * 1000 + b"1" + b"}" * 1000, "invalid_json", None),
        (b'{"a":' * 100_000, "invalid_json", None),
        (b'{"a":' + b"[" * 100_000, "invalid_json", None),
        (b'{"temperature":NaN}', "invalid_value", "temperature"),
        (b'{"temperature":Infinity}', "invalid_value", "temperature"),
        (b'{"temperature":-Infinity}', "invalid_value", "temperature"),
        (b'{"top_p":1e999}', "invalid_value", "top_p"),
        (b'{"seed":' + b"9" * 5000 + b"}", "invalid_value", "seed"),
        (b'{"logit_bias":{"5":NaN}}', "invalid_value", "logit_bias.5"),
        (b'{"messages":[{"a":1},{"b":[NaN]}]}', "invalid_value", "messages[1].b[0]"),
        (b'{"x":' + b"[" * 600 + b"NaN" + b"]" * 600 + b"}", "invalid_value", "x" + "[0]" * 25 + "[..."),
        (b'{"x":' + b'{"a":' * 600 + b"NaN" + b"}" * 600 + b"}", "invalid_value", "x" + ".a" * 38 + "..."),
        (b'{"x":' + b"[" * 20_000 + b"NaN" + b"]" * 20_000 + b"}", "invalid_json", None),
        (b'{"x":[[],{},[1,[2]],{"y":[0,{"z":-1e999}]}]}', "invalid_value", "x[3].y[1].z"),
        (b"[NaN]", "invalid_value", "[0]"),
        (b"NaN", "invalid_value", "body"),
        (b'{"a":1,"a":2}', "duplicate_key", "a"),
        (b'{"%b":1,"%b":2}' % (b"k" * 500, b"k" * 500), "duplicate_key", "k" * 77 + "..."),
        (b'{"a":[{"b":1,"c":2,"b":1}]}', "duplicate_key", "b"),
        (b'{"a":1,"\\u0061":2}', "duplicate_key", "a"),
    ],
)
def test_bad_bodies(raw: bytes, code: str, param: str | None) -> None:
    with pytest.raises(BadRequest) as failure:
        parse_object(raw)
    assert (failure.value.code, failure.value.param) == (code, param)


def test_a_key_that_occurs_twice_among_very_many_is_found_in_one_pass() -> None:
    """Comparing every key with every other one would take longer than a test may."""
    keys = [f'"{place:x}":0' for place in range(200_000)]
    with pytest.raises(BadRequest) as failure:
        parse_object(f'{{"metadata":{{{",".join(keys)},"1869f":0}}}}'.encode())
    assert (failure.value.code, failure.value.param) == ("duplicate_key", "1869f")


def test_a_long_path_is_not_spelt_for_every_value_under_it() -> None:
    raw = b'{"%b":[%bNaN]}' % (b"k" * 30_000, b"0," * 15_000)
    with pytest.raises(BadRequest) as failure:
        parse_object(raw)
    assert failure.value.param == "k" * 77 + "..."


def test_deep_bodies_up_to_the_limit_are_fine() -> None:
    assert parse_object(b'{"a":' * 127 + b"[1]" + b"}" * 127)


def test_long_numbers_and_escaped_pairs_are_fine() -> None:
    digits = "9" * 5000
    raw = b'{"a":"\\ud83d\\ude00","b":' + digits[:300].encode() + b',"c":{"a":1}}'
    assert parse_object(raw) == {"a": "\U0001f600", "b": float("9" * 300), "c": {"a": 1}}
    with pytest.raises(BadRequest):
        parse_object(b'{"a":1,"b":' + digits.encode() + b"}")


@pytest.mark.parametrize(
    "value",
    [
        b"application/json",
        b"application/json; charset=utf-8",
        b"Application/JSON",
        b'application/json;boundary=x ; Charset="UTF-8"',
        b"application/json;",
    ],
)
def test_json_is_taken(value: bytes) -> None:
    check_content_type(value)


@pytest.mark.parametrize(
    "value", [None, b"", b"text/plain", b"application/x-www-form-urlencoded", b"application/jsonp"]
)
def test_other_types_are_not(value: bytes | None) -> None:
    with pytest.raises(BadRequest) as failure:
        check_content_type(value)
    assert failure.value.code == "unsupported_content_type"


@pytest.mark.parametrize("charset", [b"utf-16", b"latin-1", b"", b"utf-8x" * 50])
def test_other_charsets_are_not(charset: bytes) -> None:
    with pytest.raises(UnsupportedEncoding, match="charset") as failure:
        check_content_type(b"application/json; charset=" + charset)
    assert charset[:20].decode() in str(failure.value)
    assert len(str(failure.value)) < 200


def test_only_plain_bodies_are_taken() -> None:
    for fine in (None, b"", b"identity", b" Identity "):
        check_encoding(fine)
    for name in (b"gzip", b"identity, gzip", b"br"):
        with pytest.raises(UnsupportedEncoding, match=name.decode()):
            check_encoding(name)
