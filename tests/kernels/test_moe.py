"""What a mixture promises about rows: they do not depend on each other, and a full limit changes nothing."""

from __future__ import annotations

import pytest
import torch

from tiergate.kernels import moe
from tiergate.kernels.cases import Case, Draw
from tiergate.kernels.ops.moe import inputs, route

CASE = Case(name="rows", rows=24, experts=8, active=4, on=True, limited=True)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_row_equals_its_solo_run(dtype: torch.dtype, renormalise: bool) -> None:
    (x, *rest), options = inputs(CASE, Draw(dtype))
    options["renormalise"] = renormalise
    together = moe(x, *rest, **options)
    limits = options.pop("experts")
    alone = torch.cat(
        [moe(x[row : row + 1], *rest, **options, experts=limits[row : row + 1]) for row in range(CASE.rows)]
    )
    slack = 1e-5 if dtype is torch.float32 else 0.02
    torch.testing.assert_close(together, alone, rtol=slack, atol=slack)


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_full_limit_is_bit_equal_to_none(dtype: torch.dtype, renormalise: bool) -> None:
    args, options = inputs(CASE, Draw(dtype))
    options |= {"renormalise": renormalise, "experts": None}
    free = moe(*args, **options)
    for limit in (CASE.active, CASE.active + 3):
        options["experts"] = torch.full((CASE.rows,), limit, dtype=torch.int32)
        assert torch.equal(moe(*args, **options), free)


def test_slots_beyond_the_limit_are_never_computed() -> None:
    (x, norm, router, weights, eps), options = inputs(CASE, Draw(torch.float32))
    options["experts"] = torch.ones(CASE.rows, dtype=torch.int32)
    _, chosen = route(router.weight.new_zeros(1, CASE.experts), 1, True, None)
    only = int(chosen)
    router.weight.zero_()
    for expert, (gate_up, down) in enumerate(zip(weights.gate_up, weights.down, strict=True)):
        if expert != only:
            gate_up.weight.fill_(torch.nan)
            down.weight.fill_(torch.nan)
    assert moe(x, norm, router, weights, eps, **options).isfinite().all()


def test_route_keeps_the_likeliest_in_order() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 1.0, 0.0, 2.0]])
    share, chosen = route(logits, 3, True, torch.tensor([2, 0], dtype=torch.int32))
    assert chosen.tolist() == [[1, 3, 4], [0, 4, 4]]
    p = logits[0].softmax(0)
    torch.testing.assert_close(share[0], torch.tensor([p[1] / (p[1] + p[3]), p[3] / (p[1] + p[3]), 0.0]))
    assert share[1].tolist() == [1.0, 0.0, 0.0]
