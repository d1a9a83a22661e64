from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiergate.tiers.calls import Written, parse_call

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=5), values, max_size=4),
    st.sampled_from([None, 2]),
    st.booleans(),
    st.sampled_from(["arguments", "parameters"]),
)
def test_gives_the_arguments_as_written(
    arguments: dict[str, object], indent: int | None, ascii: bool, key: str
) -> None:
    written = json.dumps(arguments, indent=indent, ensure_ascii=ascii)
    call = parse_call(f'\n{{"name": "look_up", "{key}" : {written} }}\n')
    assert call == Written("look_up", written)


@given(st.text('{}[]":,ane\\ 1', max_size=40))
def test_any_text_is_a_call_or_none(text: str) -> None:
    call = parse_call(text)
    assert call is None or isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"name": "f"',
        '{"name": 1, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": "two words", "arguments": {}}',
        '{"name": "\\ud800", "arguments": {}}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": {"x": NaN}}',
        '{"name": "f", "arguments": {}} and more',
        '{"name": "f", "arguments": {}}{"name": "g", "arguments": {}}',
        '{"name": "f", "arguments": ' + '{"x":' * 100_000,
    ],
)
def test_what_is_no_call(text: str) -> None:
    assert parse_call(text) is None


def test_a_call_without_arguments() -> None:
    assert parse_call('{"name": "now"}') == Written("now", "{}")
    assert parse_call('{"name": "now", "arguments": {}}') == Written("now", "{}")
