"""Who gets drafts, when, and what is made of how they turned out."""

from __future__ import annotations

from array import array

from tiergate.engine.block_pool import Chain, PrefixRoot
from tiergate.engine.draft_gate import MOST
from tiergate.engine.drafting import PATIENCE, PROBE, PROBE_EVERY, Drafting
from tiergate.engine.edits import Edits
from tiergate.engine.messages import SamplingParams
from tiergate.engine.sequence import Sequence

LOOP = [5, 6, 7, 8]


def cheap(rows: int) -> float:
    return 1 + rows / 100


def dear(rows: int) -> float:
    return float(rows)


def sequence(ids: list[int], *, order: int = 0, **sampling: object) -> Sequence:
    params = SamplingParams(**{"max_tokens": 1000, **sampling})  # type: ignore[arg-type]
    return Sequence(
        client=b"",
        id=str(order),
        order=order,
        priority=0,
        ids=array("q", ids),
        prompt_tokens=len(ids),
        sampling=params,
        edits=Edits.of(params),
        seed=0,
        eos=(0,),
        stops=frozenset((0,)),
        chain=Chain(PrefixRoot("", "")),
    )


def test_a_sequence_that_repeats_itself_gets_drafts() -> None:
    drafting, one = Drafting(), sequence(LOOP * 3)
    assert drafting.propose([one], cheap) == 0
    assert one.drafts == (*LOOP, *LOOP)[: len(one.drafts)]
    assert one.drafts


def test_one_that_does_not_is_left_to_decode() -> None:
    drafting, one = Drafting(), sequence(list(range(1, 30)))
    assert drafting.propose([one], cheap) >= PATIENCE
    assert one.drafts == ()


def test_right_drafts_become_more_and_wrong_ones_end() -> None:
    drafting, good, bad = Drafting(), sequence(LOOP * 3), sequence(LOOP * 3, order=1)
    looks = 0
    for _ in range(40):
        good.drafts = bad.drafts = ()
        drafting.propose([good, bad], cheap)
        if good.drafts:
            drafting.learn(good, len(good.drafts), len(good.drafts))
        if bad.drafts:
            looks += 1
            drafting.learn(bad, len(bad.drafts), 0)
    assert len(good.drafts) == MOST
    assert looks < 30
    assert drafting.right < drafting.drafted


def test_where_rows_are_dear_there_are_no_drafts() -> None:
    drafting, one = Drafting(), sequence(LOOP * 3)
    assert drafting.propose([one], dear) == PROBE_EVERY
    assert one.drafts == ()


def test_a_sequence_that_lost_its_trust_is_tried_now_and_then() -> None:
    drafting, one = Drafting(), sequence(LOOP * 3)
    drafted = 0
    for _ in range(10 * PROBE_EVERY):
        one.drafts = ()
        drafting.propose([one], lambda rows: 1 + rows / 3)
        if one.drafts:
            drafted += len(one.drafts)
            drafting.learn(one, len(one.drafts), 0)
        one.ids.append(LOOP[len(one.ids) % 4])
    assert PROBE * 8 <= drafted <= PROBE * 10 + 10 * MOST


def test_drafts_keep_clear_of_what_the_rules_look_at() -> None:
    drafting = Drafting()
    looped = [1, 2, 3, 0, 1, 2, 3]
    ending = sequence(looped)
    drafting.propose([ending], cheap)
    assert ending.drafts == (), "an end of sequence is not guessed"
    later = sequence([1, 2, 3, 4, 0, 1, 2, 3], order=1)
    drafting.propose([later], cheap)
    assert later.drafts == (4,)
    short = sequence(LOOP * 3, order=2, max_tokens=3)
    drafting.propose([short], cheap)
    assert len(short.drafts) == 2
    penalised = sequence(LOOP * 3, order=3, presence_penalty=0.5)
    drafting.propose([penalised], cheap)
    assert penalised.drafts == ()


def test_those_without_drafts_limit_nobody() -> None:
    drafting = Drafting()
    many = [sequence(list(range(1 + i, 40 + i)), order=i) for i in range(20)]
    for _ in range(5):
        assert drafting.propose(many, cheap) >= PATIENCE
        for one in many:
            one.ids.append(1000 + len(one.ids) * 31 + one.order)


def test_a_match_makes_it_look_again_soon() -> None:
    drafting, one = Drafting(), sequence(LOOP * 3)
    assert drafting.propose([one], cheap) == 0
    drafting.learn(one, len(one.drafts), 0)
    one.drafts = ()
    one.ids.append(77)
    pauses = []
    for token in range(100, 108):
        pauses.append(drafting.propose([one], cheap))
        one.ids.extend([token * i for i in range(1, 1 + pauses[-1])])
    assert pauses[:2] == [1, 2]
    assert min(pauses[2:]) >= PATIENCE


def test_what_ended_is_forgotten() -> None:
    drafting, one = Drafting(), sequence(LOOP * 3)
    drafting.propose([one], cheap)
    drafting.forget(one)
    drafting.forget(one)
    assert drafting.propose([sequence(LOOP * 3)], cheap) == 0
