"""Every op's cases: each implementation against a plain formula in float64."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import tiergate.kernels
from support.formulas import FORMULAS, apply, outputs, rms
from tiergate.kernels.cases import Case, Draw

DTYPES = [torch.float32, torch.bfloat16]


def module(name: str) -> ModuleType:
    return import_module(f"tiergate.kernels.ops.{name}")


PAIRS = [(name, case) for name in FORMULAS for case in module(name).CASES]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def run(name: str, case: Case, dtype: torch.dtype, function: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
    args, options = module(name).inputs(case, Draw(dtype))
    with torch.inference_mode():
        return outputs(name, function(*args, **options), args, options)


def decided(args: tuple[Any, ...], options: dict[str, Any], margin: float) -> torch.Tensor:
    """Rows of `moe` whose last chosen expert is clearly ahead of the first one left out: no rounding turns those."""
    x, norm, router, _, eps = args
    active, limits = options["active"], options["experts"]
    logits = apply(rms(x, norm, eps), router).sort(-1, descending=True).values
    logits = torch.nn.functional.pad(logits, (0, 1), value=-torch.inf)
    counts = torch.full((len(x),), active) if limits is None else limits.long().clamp(max=active)
    rows = torch.arange(len(x))
    return logits[rows, counts - 1] - logits[rows, counts] > margin


@pytest.mark.parametrize("implementation", ["reference", "dispatched"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])
@pytest.mark.parametrize(("name", "case"), PAIRS, ids=[f"{name}-{case.name}" for name, case in PAIRS])
def test_equals_the_formula(name: str, case: Case, dtype: torch.dtype, implementation: str) -> None:
    op = getattr(module(name), name)
    got = run(name, case, dtype, op.reference if implementation == "reference" else op)
    args, options = module(name).inputs(case, Draw(dtype))
    want = FORMULAS[name](*args, **options)
    tolerance = module(name).TOLERANCE[dtype]
    rows: Any = slice(None)
    if name == "moe":
        rows = decided(args, options, 0.0 if dtype is torch.float32 else 0.2)
        assert rows.sum() >= 0.7 * len(rows)
    assert got[0].dtype == (torch.float32 if name == "lm_head" else dtype)
    for have, expected in zip(got, want, strict=True):
        torch.testing.assert_close(
            have[rows].double(), expected[rows].double(), rtol=tolerance.relative, atol=tolerance.absolute
        )


def test_every_op_has_cases_or_its_own_suite() -> None:
    files = {path.stem for path in Path(tiergate.kernels.__file__ or "").parent.glob("ops/*.py")} - {"__init__"}
    own = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert files - set(FORMULAS) <= own


def test_lm_head_writes_into_the_buffers_it_is_given() -> None:
    case = next(case for case in module("lm_head").CASES if case.on)
    args, options = module("lm_head").inputs(case, Draw(torch.float32))
    logits = module("lm_head").lm_head(*args, **options)
    assert logits.data_ptr() == options["out"].data_ptr()
    assert options["out"][case.rows :].isnan().all()
    assert options["statistics"][case.rows :].isnan().all()


def test_statistics_of_unlikely_and_broken_rows() -> None:
    rows = torch.tensor([[1.0, -torch.inf, 1.0], [0.0, torch.nan, 1.0]])
    top, second, total, entropy = module("lm_head").row_statistics(rows).T
    assert top[0] == second[0] == 1
    torch.testing.assert_close(total[0], torch.tensor(2.0).log() + 1)
    torch.testing.assert_close(entropy[0], torch.tensor(2.0).log())
    assert total[1].isnan()
    assert entropy[1].isnan()


def test_inputs_are_left_as_they_are() -> None:
    for name in ("norm_linear", "linear_residual", "gated_mlp", "moe"):
        case = next(case for case in module(name).CASES if case.rows > 5)
        args, options = module(name).inputs(case, Draw(torch.float32))
        before = [arg.clone() for arg in args if isinstance(arg, torch.Tensor)]
        getattr(module(name), name)(*args, **options)
        after = [arg for arg in args if isinstance(arg, torch.Tensor)]
        assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True)), name
