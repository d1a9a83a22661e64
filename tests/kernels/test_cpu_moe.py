"""The native choice and mixing of experts against the op's reference, and bit against bit between its paths."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tiergate.kernels.native import library
from tiergate.kernels.native_moe import Routing, mix, route
from tiergate.kernels.ops.moe import route as reference

SCALAR, AVX2, AVX512 = range(3)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def have(level: int) -> bool:
    return bool(library().tg_best_level() >= level)


@pytest.fixture(scope="session", params=[SCALAR, AVX2, AVX512], ids=["scalar", "avx2", "avx512"])
def level(request: pytest.FixtureRequest) -> int:
    wanted: int = request.param
    if not have(wanted):
        pytest.skip("this machine does not have that level")
    return wanted


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


def chosen(routing: Routing) -> torch.Tensor:
    """Expert of each (row, choice), int64, the number of experts where there is none."""
    experts = routing.expert_starts.shape[0] - 1
    owners = torch.bucketize(routing.row_slots, routing.expert_starts, right=True) - 1
    return owners.where(routing.row_slots >= 0, experts)


def check_books(routing: Routing) -> None:
    """Every slot belongs to one choice of one row, in the order that is promised."""
    live = routing.row_slots[routing.row_slots >= 0]
    assert sorted(live.tolist()) == list(range(len(routing.slot_rows)))
    rows = torch.arange(len(routing.row_slots), dtype=torch.int32)[:, None].expand_as(routing.row_slots)
    assert torch.equal(routing.slot_rows[live.long()], rows[routing.row_slots >= 0])
    starts = routing.expert_starts.tolist()
    assert starts[0] == 0
    for first, last in pairwise(starts):
        mine = routing.slot_rows[first:last].tolist()
        assert mine == sorted(set(mine))


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize(
    ("rows", "experts", "active"), [(0, 4, 2), (1, 1, 1), (9, 4, 2), (33, 7, 7), (40, 40, 17), (64, 128, 8)]
)
def test_the_choice_is_the_references(level: int, rows: int, experts: int, active: int, renormalise: bool) -> None:
    logits = draw(rows, experts)
    limits = torch.arange(rows, dtype=torch.int32) % (active + 2) - 1
    for limit in (None, limits):
        routing = route(level, logits, active, renormalise=renormalise, experts=limit)
        share, ids = reference(logits, active, renormalise, limit)
        check_books(routing)
        assert torch.equal(chosen(routing), ids)
        torch.testing.assert_close(routing.row_weights, share, rtol=1e-5, atol=1e-7)


def test_of_equals_the_lower_is_chosen(level: int) -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0, 1.0], [0.0] * 6])
    routing = route(level, logits, 4, renormalise=False)
    assert chosen(routing).tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]


def test_numbers_that_are_none_choose_somebody(level: int) -> None:
    logits = torch.tensor([[torch.nan] * 5, [1.0, torch.nan, 2.0, 3.0, 4.0]])
    routing = route(level, logits, 2, renormalise=True)
    check_books(routing)
    assert routing.row_weights.isnan().all(1).tolist() == [True, True]


@pytest.mark.parametrize("hidden", [1, 16, 33, 576])
def test_mixing_adds_the_weighted_slots(level: int, hidden: int) -> None:
    limits = torch.arange(20, dtype=torch.int32) % 4
    routing = route(level, draw(20, 6), 3, renormalise=True, experts=limits)
    y, x = draw(len(routing.slot_rows), hidden, seed=1), draw(20, hidden, seed=2)
    padded = torch.cat([y, torch.zeros(1, hidden)])
    right = x + (padded[routing.row_slots.long()] * routing.row_weights[:, :, None]).sum(1)
    mix(level, routing, y, x)
    torch.testing.assert_close(x, right, rtol=1e-5, atol=1e-5)


@given(
    rows=st.integers(0, 12),
    experts=st.integers(1, 40),
    hidden=st.integers(1, 40),
    ranks=st.integers(1, 5),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_a_row_has_the_same_bits_on_every_path(
    rows: int, experts: int, hidden: int, ranks: int, seed: int, data: st.DataObject
) -> None:
    if not have(AVX2):
        pytest.skip("no fused multiply-add here")
    active = data.draw(st.integers(1, experts))
    logits, x = draw(rows, experts, seed=seed), draw(rows, hidden, seed=seed + 1)
    outputs = draw(experts, rows, hidden, seed=seed + 2)
    found = []
    for level in (AVX2, AVX512):
        if not have(level):
            continue
        together = route(level, logits, active, renormalise=True)
        check_books(together)
        owners = chosen(together).flatten()[together.row_slots.flatten().argsort()]
        for count in (1, ranks):
            mixed = x.clone()
            mix(level, together, outputs[owners, together.slot_rows.long()], mixed, ranks=count)
            found.append(mixed)
        alone = x.clone()
        for row in range(rows):
            single = route(level, logits[row : row + 1], active, renormalise=True)
            owners = chosen(single)[0][single.row_slots[0].argsort()]
            mix(level, single, outputs[owners, row], alone[row : row + 1])
        found.append(alone)
    assert all(torch.equal(each.view(torch.int32), found[0].view(torch.int32)) for each in found)
