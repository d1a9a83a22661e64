"""The thinking budget, kept against whatever a model might say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergate.engine import ThinkLimit, thinking
from tiergate.engine.messages import CHARACTER_GRACE
from tiergate.engine.thinking import ThinkRules, ThinkState

EOS = 0
OPEN, CLOSE, TOOL, END_TOOL = 1, 2, 3, 4
HAND, OFF, BLANK, PART = 5, 6, 7, 8
WORD, MORE = 9, 13


@dataclass
class Told:
    """A turn as it came out."""

    ids: list[int] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    """Phase before each token."""
    state: ThinkState | None = None

    def inside(self) -> int:
        """Tokens of thought, by the plain reading: in a block, not forced, not of a marker. For one-token markers."""
        return sum(
            p == "think" and not f and t not in (CLOSE, TOOL)
            for t, f, p in zip(self.ids, self.forced, self.phases, strict=True)
        )


def tell(limit: ThinkLimit, model: Callable[[int, tuple[int, ...]], int], max_tokens: int = 60) -> Told:
    """Run a turn. `model(n, banned)` names the token it would like at position n; the engine has the last word."""
    rules = thinking.make_rules(limit, (EOS,), max_tokens)
    state = thinking.start(rules)
    told = Told()
    while len(told.ids) < max_tokens:
        state = thinking.settle(rules, state)
        told.phases.append(state.phase)
        forced = bool(state.queue)
        if forced:
            token = state.queue[0]
        else:
            banned = set(thinking.banned_openers(rules, state)) | ({EOS} if state.fresh else set())
            token = model(len(told.ids), tuple(banned))
            if token in banned:
                token = WORD
            state = thinking.intercept(rules, state, token)
            if state.queue:
                token, forced = state.queue[0], True
        inert = thinking.inert(state)
        state = thinking.advance(rules, state, token)
        told.ids.append(token)
        told.forced.append(forced)
        if token == EOS and not inert:
            break
    told.state = state
    return told


def script(*tokens: int, then: int = EOS) -> Callable[[int, tuple[int, ...]], int]:
    return lambda n, banned: tokens[n] if n < len(tokens) else then


def limit(**settings: object) -> ThinkLimit:
    base: dict[str, object] = {"closers": ((CLOSE,),), "openers": ((OPEN,),), "implicit_closers": ((TOOL,),)}
    return ThinkLimit(**{**base, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("hard", [1, 2, 5])
def test_cut_exactly_at_the_limit(hard: int) -> None:
    told = tell(limit(open=True, hard=hard, handoff=(HAND, OFF), after=(BLANK,)), script(then=WORD))
    assert told.ids[: hard + 5] == [WORD] * hard + [HAND, OFF, CLOSE, BLANK, WORD]
    assert told.state is not None
    assert (told.state.used, told.state.spent) == (hard, hard + 3)


def test_no_budget_closes_at_once_and_without_words() -> None:
    told = tell(limit(open=True, hard=0, handoff=(HAND, OFF), after=(BLANK,)), script(WORD, WORD, WORD))
    assert told.ids == [CLOSE, BLANK, WORD, EOS]


def test_no_budget_bans_opening() -> None:
    assert OPEN not in tell(limit(hard=0), script(WORD, OPEN, OPEN, WORD)).ids


def test_a_block_the_model_opens_is_bounded_too() -> None:
    told = tell(limit(hard=2), script(WORD, OPEN, then=WORD), max_tokens=8)
    assert told.ids == [WORD, OPEN, WORD, WORD, CLOSE, WORD, WORD, WORD]
    assert told.state is not None
    assert told.state.spent == 4


def test_blocks_share_one_budget() -> None:
    told = tell(
        limit(open=True, hard=5), script(WORD, WORD, CLOSE, WORD, OPEN, WORD, CLOSE, OPEN, then=WORD), max_tokens=14
    )
    assert told.ids == [WORD, WORD, CLOSE, WORD, OPEN, WORD, CLOSE, OPEN, WORD, WORD, CLOSE, WORD, WORD, WORD]
    assert told.inside() == 5


def test_a_cut_is_final() -> None:
    told = tell(limit(open=True, hard=1), script(WORD, then=OPEN), max_tokens=9)
    assert told.ids == [WORD, CLOSE] + [WORD] * 7


def test_a_budget_beyond_the_thought_changes_nothing() -> None:
    words = (WORD, WORD, CLOSE, WORD, WORD, EOS)
    free = tell(limit(open=True, handoff=(HAND,)), script(*words))
    assert tell(limit(open=True, handoff=(HAND,), hard=6), script(*words)).ids == free.ids == list(words)
    assert tell(limit(open=True, handoff=(HAND,), hard=3), script(*words)).ids == free.ids


def test_the_answer_does_not_end_before_it_begins() -> None:
    assert tell(limit(open=True), script(WORD, CLOSE, EOS)).ids == [WORD, CLOSE, WORD, EOS]
    assert tell(limit(open=True, hard=1, after=(BLANK,)), script(WORD)).ids == [WORD, CLOSE, BLANK, WORD, EOS]


def test_a_turn_that_would_end_in_a_thought_is_answered() -> None:
    told = tell(limit(open=True, handoff=(HAND,), after=(BLANK,)), script(WORD, EOS, WORD, WORD))
    assert told.ids == [WORD, HAND, CLOSE, BLANK, WORD, EOS]
    assert told.forced == [False, True, True, True, False, False]


def test_a_tool_call_ends_a_thought_and_is_not_cut() -> None:
    told = tell(limit(open=True, hard=3), script(WORD, WORD, TOOL, WORD, WORD, WORD, WORD))
    assert told.ids == [WORD, WORD, TOOL, WORD, WORD, WORD, WORD, EOS]
    assert told.state is not None
    assert told.state.spent == 2


def test_markers_in_a_tool_call_are_data() -> None:
    for head in ((TOOL,), (WORD, CLOSE, TOOL)):
        told = tell(limit(open=True, hard=2), script(*head, OPEN, WORD, WORD, WORD, WORD))
        assert told.ids == [*head, OPEN, WORD, WORD, WORD, WORD, EOS]


def test_behind_a_tool_call_thinking_is_seen_again() -> None:
    model = script(TOOL, OPEN, END_TOOL, OPEN, then=WORD)
    told = tell(limit(open=True, hard=2, call_closers=((END_TOOL,),)), model, max_tokens=9)
    assert told.ids == [TOOL, OPEN, END_TOOL, OPEN, WORD, WORD, CLOSE, WORD, WORD]


MULTI = {"openers": ((20, 21, 22),), "closers": ((30, 31), (40, 41, 42)), "implicit_closers": ((50, 51, 52),)}


def test_markers_of_many_tokens() -> None:
    told = tell(limit(**MULTI, hard=3, handoff=(HAND,)), script(WORD, 20, 21, 22, then=WORD), max_tokens=11)
    assert told.ids == [WORD, 20, 21, 22, WORD, WORD, WORD, HAND, 30, 31, WORD]
    assert told.state is not None
    assert (told.state.used, told.state.spent) == (3, 9)
    told = tell(limit(**MULTI, open=True), script(WORD, 40, 41, 42, WORD))
    assert told.state is not None
    assert (told.state.used, told.state.spent) == (1, 4)
    told = tell(limit(**MULTI, open=True), script(WORD, 50, 51, 52, WORD))
    assert told.state is not None
    assert (told.state.used, told.state.spent, told.state.phase) == (1, 1, "call")


def test_a_closer_half_written_at_the_limit_is_completed() -> None:
    told = tell(limit(**MULTI, open=True, hard=3, handoff=(HAND,)), script(WORD, 40, 41, WORD, WORD))
    assert told.ids == [WORD, 40, 41, 42, WORD, EOS]
    assert told.state is not None
    assert (told.state.used, told.state.spent) == (1, 4)


def test_a_tool_call_half_written_at_the_limit_is_waited_for() -> None:
    told = tell(limit(**MULTI, open=True, hard=2), script(WORD, 50, 51, 52, WORD))
    assert told.ids == [WORD, 50, 51, 52, WORD, EOS]
    told = tell(limit(**MULTI, open=True, hard=2), script(WORD, 50, 51, then=WORD), max_tokens=7)
    assert told.ids == [WORD, 50, 51, WORD, 30, 31, WORD]


def test_completing_a_banned_opener_is_banned() -> None:
    told = tell(limit(**MULTI, open=True, hard=0), script(20, 20, 20, 21, 22, WORD))
    assert told.ids == [30, 31, 20, 21, WORD, WORD, EOS]


def test_a_character_is_completed_before_the_cut() -> None:
    words = limit(open=True, hard=2, partial={PART: 2}, continuing={MORE: 1})
    for character in ((PART, MORE, MORE), (WORD, PART, MORE, MORE), (WORD, MORE), (PART, WORD)):
        length = max(2, len(character))
        assert tell(words, script(*character, then=WORD), max_tokens=7).ids[: length + 1] == [*character, CLOSE]
    told = tell(words, script(then=PART), max_tokens=9)
    assert told.ids[:6] == [PART] * (2 + CHARACTER_GRACE) + [CLOSE]


@pytest.mark.parametrize("max_tokens", range(1, 24))
@pytest.mark.parametrize("hard", [None, 4])
@pytest.mark.parametrize("partial", [{}, {WORD: 1}])
def test_the_answer_keeps_its_reserve(max_tokens: int, hard: int | None, partial: dict[int, int]) -> None:
    reserve, cost = 6, 4
    words = limit(open=True, hard=hard, handoff=(HAND, OFF), after=(BLANK,), answer_reserve=reserve, partial=partial)
    told = tell(words, script(then=WORD), max_tokens)
    answer = [t for t, p in zip(told.ids, told.phases, strict=True) if p == "answer"]
    if max_tokens >= reserve + 2:
        assert len(answer) >= reserve
    else:
        assert len(answer) >= max_tokens - 2, "the answer gets what there is"
    if max_tokens > reserve + cost + 10:
        assert told.ids[:2] == [WORD, WORD], "no thought is cut without need"


def test_the_soft_aim_draws_towards_the_closer() -> None:
    rules = thinking.make_rules(limit(soft=100), (EOS,), 1000)
    bias = {n: thinking.soft_bias(rules, ThinkState("think", used=n)) for n in (0, 84, 85, 100, 115)}
    assert bias[0] is None
    assert bias[84] is None
    assert bias[85] == (CLOSE, 0.0)
    assert bias[100] == (CLOSE, pytest.approx(thinking.SOFT_GAIN))
    assert bias[115] == (CLOSE, pytest.approx(4 * thinking.SOFT_GAIN))
    assert thinking.soft_bias(rules, ThinkState("answer", used=200)) is None


@pytest.mark.parametrize("soft", [0, 1, 3])
def test_small_soft_aims_are_finite(soft: int) -> None:
    rules = thinking.make_rules(limit(soft=soft), (EOS,), 100)
    assert thinking.soft_bias(rules, ThinkState("think", used=soft + 1)) is not None


def test_the_soft_aim_follows_a_closer_of_many_tokens() -> None:
    rules = thinking.make_rules(limit(**MULTI, soft=1), (EOS,), 100)
    state = thinking.advance(rules, ThinkState("think", used=5), 30)
    bias = thinking.soft_bias(rules, state)
    assert bias is not None
    assert bias[0] == 31


markers = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), min_size=1, max_size=2).map(tuple)


@st.composite
def limits(draw: st.DrawFn) -> ThinkLimit:
    return ThinkLimit(
        closers=draw(markers),
        openers=draw(markers | st.just(())),
        implicit_closers=draw(markers | st.just(())),
        call_closers=draw(markers | st.just(())),
        open=draw(st.booleans()),
        hard=draw(st.none() | st.integers(0, 12)),
        handoff=draw(st.sampled_from([(), (10,), (10, 11)])),
        after=draw(st.sampled_from([(), (12,)])),
        answer_reserve=draw(st.sampled_from([0, 0, 5])),
        partial=draw(st.sampled_from([{}, {5: 1}, {5: 3}])),
        continuing=draw(st.sampled_from([{}, {6: 1}])),
    )


@given(limits(), st.lists(st.integers(0, 6), max_size=60), st.integers(1, 60))
@settings(max_examples=200, deadline=None)
def test_whatever_the_model_says(words: ThinkLimit, tokens: list[int], max_tokens: int) -> None:
    rules = thinking.make_rules(words, (EOS,), max_tokens)
    told = tell(words, script(*tokens, then=6), max_tokens)
    state = told.state
    assert state is not None
    assert state.generated == len(told.ids)
    assert 0 <= state.used <= state.spent <= len(told.ids)
    if words.hard is not None:
        assert state.used <= words.hard + rules.slack
        if not rules.slack:
            assert state.used <= words.hard
    if told.ids[-1] == EOS:
        assert told.phases[-1] in ("answer", "call"), "a turn never ends in a thought"
    for at, (forced, phase) in enumerate(zip(told.forced, told.phases, strict=True)):
        if at and phase == "answer" and told.phases[at - 1] in ("think", "forcing"):
            assert told.ids[at] != EOS
        if forced:
            assert phase in ("forcing", "think")
    cut = told.forced.index(True) if True in told.forced else None
    if cut is not None:
        assert "think" not in told.phases[cut + 1 :], "opened again after a cut"
    thoughts = [at for at, phase in enumerate(told.phases) if phase in ("think", "forcing")]
    if words.answer_reserve and thoughts and "call" not in told.phases:
        room = max_tokens - max(map(len, words.closers)) - len(words.after)
        assert max_tokens - 1 - thoughts[-1] >= min(words.answer_reserve, room), "the answer lost its reserve"


@given(limits(), st.lists(st.integers(0, 6), max_size=40))
@settings(max_examples=200, deadline=None)
def test_a_limit_out_of_reach_changes_nothing(words: ThinkLimit, tokens: list[int]) -> None:
    free = ThinkLimit(
        closers=words.closers,
        openers=words.openers,
        implicit_closers=words.implicit_closers,
        open=words.open,
        handoff=(10, 11),
    )
    bound = ThinkLimit(
        closers=words.closers,
        openers=words.openers,
        implicit_closers=words.implicit_closers,
        open=words.open,
        hard=100,
        handoff=(10, 11),
        partial=words.partial,
        continuing=words.continuing,
    )
    assert tell(free, script(*tokens)).ids == tell(bound, script(*tokens)).ids


@given(
    limits(),
    st.sampled_from([None, 0, 4, 9]),
    st.lists(st.integers(0, 8), max_size=30),
    st.lists(st.integers(5, 9), min_size=20, max_size=20),
    st.integers(1, 60),
)
@settings(max_examples=400, deadline=None)
def test_calm_tokens_change_nothing_but_counts(
    words: ThinkLimit, soft: int | None, before: list[int], coming: list[int], max_tokens: int
) -> None:
    """From any state: so many tokens that are no marks meet the same rules, and can be taken together."""
    rules = thinking.make_rules(msgspec.structs.replace(words, soft=soft), (EOS,), max_tokens)
    state = _behind(rules, before)

    def said(now: ThinkState) -> tuple[object, ...]:
        settled = thinking.settle(rules, now)
        return settled.queue, now.fresh, now.phase, thinking.soft_bias(rules, now), thinking.banned_openers(rules, now)

    calm = thinking.calm(rules, state)
    assert calm is None or calm >= 1
    if state.queue:
        assert calm == 1
        return
    count = min(len(coming), max_tokens - state.generated, len(coming) if calm is None else calm)
    one_by_one = state
    for number, token in enumerate(coming[:count]):
        assert said(one_by_one) == said(state)
        assert thinking.advance_calmly(rules, state, coming[:number]) == one_by_one
        one_by_one = thinking.advance(rules, one_by_one, token)


def test_most_of_a_turn_is_calm() -> None:
    def calm(state: ThinkState, **settings: object) -> int | None:
        return thinking.calm(thinking.make_rules(limit(**settings), (EOS,), 1000), state)

    deep = ThinkState("think", used=7, spent=8, generated=7, tail=(WORD,))
    assert calm(deep) is None
    assert calm(deep, hard=50) == 43
    assert calm(deep, hard=50, soft=20) == 10
    assert calm(deep, answer_reserve=900) == 92
    assert calm(ThinkState("answer", used=7, tail=(WORD,)), hard=50) is None
    assert calm(ThinkState("answer", fresh=True)) == 1
    assert calm(ThinkState("call", tail=(WORD,))) is None


def _behind(rules: ThinkRules, tokens: list[int]) -> ThinkState:
    """A state that a turn can be in when a token is drawn."""
    state = thinking.settle(rules, thinking.start(rules))
    for token in tokens:
        if state.generated == rules.max_tokens - 1:
            break
        state = thinking.intercept(rules, state, token)
        while state.queue and state.generated < rules.max_tokens - 1:
            state = thinking.advance(rules, state, state.queue[0])
        if state.queue:
            break
        if token not in thinking.banned_openers(rules, state) and state.generated < rules.max_tokens - 1:
            state = thinking.advance(rules, state, token)
        state = thinking.settle(rules, state)
    return state
