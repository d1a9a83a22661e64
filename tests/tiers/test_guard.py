from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiergate.tiers import BadPrompt
from tiergate.tiers.guard import MARKS, Guard

CONTROL = ("<|a|>", "[b]")
values = st.recursive(
    st.none() | st.integers() | st.text("<|a>[b]x\U000f0000\U000f0001", max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("<a>[b]", max_size=4), inner, max_size=3),
    max_leaves=6,
)


def strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for one in pair for text in strings(one)]
    return [text for one in value for text in strings(one)] if isinstance(value, list) else []


@given(values)
def test_no_control_string_is_left_and_everything_comes_back(value: object) -> None:
    covered = Guard(CONTROL).cover(value)
    assert [covered.uncover(text) for text in strings(covered.value)] == strings(value)
    for text in strings(covered.value):
        assert not any(control in text for control in CONTROL)


@given(st.text("<|a>[b]", max_size=6), st.text("<|a>[b]", max_size=6), st.text("<|a>[b]", max_size=6))
def test_no_control_string_begins_or_ends_in_foreign_text(before: str, foreign: str, behind: str) -> None:
    covered = Guard(CONTROL).cover(foreign).value
    joined = before + covered + behind
    for control in CONTROL:
        at = joined.find(control)
        while at >= 0:
            end = at + len(control)
            inside = at < len(before) and end > len(before + covered) and foreign not in ("a", "b")
            assert end <= len(before) or at >= len(before + covered) or not covered or inside
            at = joined.find(control, at + 1)


@pytest.mark.parametrize("control", ["<|im_start|>", "<think>", "</think>", "[INST]", "<｜User｜>"])
def test_a_name_does_not_complete_the_control_string_around_it(control: str) -> None:
    name = control.strip("<|>/[]｜")
    left, right = control.split(name)
    covered = Guard([control]).cover(f" {name}\n")
    assert left + covered.value.strip() + right != control
    assert covered.uncover(covered.value) == f" {name}\n"


def test_keys_that_templates_look_up_stay() -> None:
    covered = Guard(("nx",)).cover({"content": "n", "name": {"n": "x"}})
    mark = covered.mark
    assert covered.value == {"content": f"n{mark}", "name": {f"n{mark}": f"{mark}x"}}


def test_a_text_with_every_mark_is_refused_in_linear_time() -> None:
    every = "".join(map(chr, MARKS))
    with pytest.raises(BadPrompt):
        Guard(CONTROL).cover([every])
    assert Guard(CONTROL).cover([every[:-1]]).mark == every[-1]
