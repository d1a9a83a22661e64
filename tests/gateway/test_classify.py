from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiergate.gateway.classify import HEAD, TAIL, Features, classify, features, label_of, score
from tiergate.tiers import ChatRequest, Message, ToolSpec


def chat(*turns: str, tools: int = 0) -> ChatRequest:
    roles = ("user", "assistant")
    messages = tuple(Message(role=roles[place % 2], content=turn) for place, turn in enumerate(turns))  # type: ignore[arg-type]
    return ChatRequest(
        model="auto", messages=messages, tools=tuple(ToolSpec(name=f"t{place}") for place in range(tools))
    )


EASY = ["Hi!", "Thanks", "Who wrote Hamlet?", "What is the capital of France?", "Tell me a joke"]
HARD = [
    "Prove that the square root of 2 is irrational, step by step, and explain why each step must hold.",
    "Implement a lock-free queue in C++ with `std::atomic`, analyze its memory ordering, and compare it with a mutex:\n"
    "```cpp\nstruct Node { int value; Node* next; };\n```",
    "A train leaves at 3 pm at 60 mph, another at 4 pm at 80 mph from the same station. Assume both keep their speed. "
    "Calculate when the second overtakes the first, then derive a formula for any two speeds and explain each step.",
]


@pytest.mark.parametrize("text", EASY)
def test_easy_ones(text: str) -> None:
    assert classify(chat(text)).label in ("trivial", "simple")


@pytest.mark.parametrize("text", HARD)
def test_hard_ones(text: str) -> None:
    assert classify(chat(text)).label in ("medium", "hard")


def test_hard_ones_score_above_easy_ones() -> None:
    assert max(classify(chat(text)).score for text in EASY) < min(classify(chat(text)).score for text in HARD)


def test_what_is_seen() -> None:
    found = features(chat("Solve 3x + 5 = 20 for x.\nThen prove it. Really? Must it hold?"))
    assert found == Features(
        words=15, code=0, maths=found.maths, steps=2, bounds=1, questions=2, lines=1, small_talk=False, look_up=False,
        work_out=True, turns=1, again=False, tools=0,
    )  # fmt: skip
    assert found.maths >= 3


@pytest.mark.parametrize(
    "last", ["No, that is wrong.", "Are you sure?", "try again please", "What colour is the sky over Paris today?"]
)
def test_asking_again_is_noticed(last: str) -> None:
    first = "What colour is the sky over Paris today then?"
    assert features(chat(first, "Green.", last)).again
    assert classify(chat(first, "Green.", last)).score > classify(chat(last)).score
    assert "asks again" in classify(chat(first, "Green.", last)).signs


def test_another_question_is_not_asking_again() -> None:
    assert not features(chat("What colour is the sky?", "Blue.", "And who painted the Mona Lisa?")).again


def test_no_user_turn_at_all() -> None:
    request = ChatRequest(model="auto", messages=(Message(role="system", content="Prove everything."),))
    assert classify(request).label == "trivial"


def test_only_both_ends_of_a_long_text_are_read() -> None:
    filler = "x " * 200_000
    assert features(chat("prove " + filler + " derive?")).steps == 2
    assert features(chat(filler + "prove" + filler)).steps == 0
    assert features(chat(filler)).words >= len(filler) // 6
    assert len(filler) > HEAD + TAIL


@given(st.lists(st.text(), min_size=1, max_size=5), st.integers(0, 3))
def test_any_conversation_has_a_score(turns: list[str], tools: int) -> None:
    found = classify(chat(*turns, tools=tools))
    assert 0 <= found.score <= 1
    assert found.label == label_of(found.score)
    assert len(found.signs) <= 3
    assert all(sign.isascii() for sign in found.signs)
    assert found == classify(chat(*turns, tools=tools))


COUNTS = st.integers(0, 30)


@given(
    st.builds(
        Features, words=st.integers(0, 10_000), code=COUNTS, maths=COUNTS, steps=COUNTS, bounds=COUNTS,
        questions=COUNTS, lines=COUNTS, small_talk=st.booleans(), look_up=st.booleans(), turns=COUNTS,
        again=st.booleans(), work_out=st.booleans(), tools=COUNTS,
    ),
    st.sampled_from(["words", "code", "maths", "steps", "bounds", "questions", "lines", "turns", "tools"]),
    st.integers(1, 50),
)  # fmt: skip
def test_more_signs_never_lower_the_score(found: Features, name: str, more: int) -> None:
    raised = replace(found, **{name: getattr(found, name) + more})
    assert score(raised).score >= score(found).score
