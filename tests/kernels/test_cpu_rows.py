"""Embedding and row preparation of the CPU core: against float64, across levels, at the edges of floating point."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tiergate.kernels.cpu_features import cpu_features
from tiergate.kernels.dispatch import Unavailable
from tiergate.kernels.native import library
from tiergate.kernels.packing import rotate
from tiergate.kernels.toolchain import LEVELS

BF16, INT8, INT4 = 0, 1, 2
EPS = 1e-5
SIZES = [(1, 1), (3, 15), (2, 16), (5, 17), (4, 33), (2, 64), (3, 576), (1, 1000)]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Prepared:
    data: npt.NDArray[np.generic]
    scale: Floats
    sums: npt.NDArray[np.int32]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Prepared)
        mine, theirs = (self.data, self.scale, self.sums), (other.data, other.scale, other.sums)
        return all(a.tobytes() == b.tobytes() for a, b in zip(mine, theirs, strict=True))


@pytest.fixture(scope="module")
def core() -> ctypes.CDLL:
    try:
        return library()
    except Unavailable as why:
        pytest.skip(str(why))


def level_number(name: str) -> int:
    number = [level.name for level in LEVELS].index(name)
    if not LEVELS[number].features <= cpu_features().features:
        pytest.skip(f"this processor has no {name}")
    return number


@pytest.fixture(params=["scalar", "avx2", "avx512"])
def level(request: pytest.FixtureRequest) -> int:
    return level_number(request.param)


def prepare(
    core: ctypes.CDLL,
    level: int,
    form: int,
    x: Floats,
    norm: Floats | None = None,
    *,
    ranks: int = 1,
    stride: int = 0,
    rotated: bool = False,
) -> Prepared:
    rows, width = x.shape
    stride = stride or width
    source = np.full((rows, stride), np.nan, np.float32)
    source[:, :width] = x
    padded = -(-width // 64) * 64
    dtype = np.uint16 if form == BF16 else np.int8
    # Stale memory of every kind must be overwritten.
    data = np.full((rows, padded), 0x55, dtype)
    scale, sums = np.full(rows, np.nan, np.float32), np.full((rows, padded // 32), 77, np.int32)
    done = core.tg_probe_prepare(
        level, form, rotated, rows, width, padded, ctypes.c_void_p(source.ctypes.data), ctypes.c_int64(stride),
        None if norm is None else ctypes.c_void_p(norm.ctypes.data), ctypes.c_float(EPS),
        ctypes.c_void_p(data.ctypes.data), ctypes.c_void_p(scale.ctypes.data), ctypes.c_void_p(sums.ctypes.data), ranks,
    )  # fmt: skip
    assert done == 0
    return Prepared(data, scale, sums)


def from_bf16(bits: npt.NDArray[np.generic]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def draw(rows: int, width: int, seed: int = 0) -> tuple[Floats, Floats]:
    random = np.random.default_rng(seed)
    x = random.normal(0, 3, (rows, width)).astype(np.float32)
    return x, random.normal(1, 0.3, width).astype(np.float32)


def normed(x: Floats, norm: Floats) -> npt.NDArray[np.float64]:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(1, keepdims=True) + EPS) * norm


@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_bf16_is_the_norm_rounded_once(core: ctypes.CDLL, level: int, rows: int, width: int) -> None:
    x, norm = draw(rows, width)
    got = prepare(core, level, BF16, x, norm, stride=width + 5)
    want = normed(x, norm)
    assert (np.abs(from_bf16(got.data[:, :width]) - want) <= np.abs(want) * (2**-8 + 2**-20)).all()
    assert not got.data[:, width:].any()
    bare = prepare(core, level, BF16, x)
    error = np.abs(from_bf16(bare.data[:, :width]) - x)
    assert (error <= np.abs(x) * 2**-8).all()


@pytest.mark.parametrize("form", [INT8, INT4])
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_int8_is_symmetric_and_nearest(core: ctypes.CDLL, level: int, form: int, rows: int, width: int) -> None:
    x, norm = draw(rows, width, seed=1)
    for weight, want in ((norm, normed(x, norm)), (None, x.astype(np.float64))):
        got = prepare(core, level, form, x, weight, stride=width + 3)
        values = got.data[:, :width].astype(np.float64)
        np.testing.assert_allclose(got.scale, np.abs(want).max(1) / 127, rtol=1e-5)
        assert np.abs(values * got.scale[:, None].astype(np.float64) - want).max() <= got.scale.max() * 0.501
        assert (np.abs(values).max(1) == 127).all()
        assert not got.data[:, width:].any()
        groups = got.data.reshape(rows, -1, 32).astype(np.int32).sum(2)
        assert (got.sums == groups).all()


@pytest.mark.parametrize("width", [64, 576])
def test_rotated_rows_are_rounded_in_the_other_basis(core: ctypes.CDLL, level: int, width: int) -> None:
    x, norm = draw(9, width, seed=4)
    x[:, 3] *= 200
    x[8] = 0
    for weight, plain in ((norm, normed(x, norm)), (None, x.astype(np.float64))):
        want = rotate(torch.from_numpy(plain.astype(np.float32))).numpy().astype(np.float64)
        got = prepare(core, level, INT8, x, weight, rotated=True, stride=width + 3)
        np.testing.assert_allclose(got.scale, np.abs(want).max(1) / 127, rtol=1e-5)
        assert np.abs(got.data * got.scale[:, None].astype(np.float64) - want).max() <= got.scale.max() * 0.502
        assert (got.sums == got.data.reshape(9, -1, 32).astype(np.int32).sum(2)).all()
        # An outlier costs its neighbours less than it does unrotated.
        assert got.scale[0] < 0.6 * prepare(core, level, INT8, x, weight).scale[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_rotated_row_that_is_no_number_stays_none(core: ctypes.CDLL, level: int, bad: float) -> None:
    x, norm = draw(2, 128, seed=5)
    x[1, 70] = bad
    got = prepare(core, level, INT8, x, norm, rotated=True)
    assert np.isfinite(got.scale[0])
    assert np.isnan(got.scale[1])
    assert not got.data[1].any()
    assert not got.sums[1].any()


@pytest.mark.parametrize(("form", "rotated"), [(BF16, False), (INT8, False), (INT8, True)])
def test_levels_ranks_and_company_change_no_bit(core: ctypes.CDLL, form: int, rotated: bool) -> None:
    top = level_number("avx2")
    x, norm = draw(7, 576 if rotated else 577, seed=2)
    first = prepare(core, top, form, x, norm, rotated=rotated)
    for level in (top, top + 1):
        if not LEVELS[level].features <= cpu_features().features:
            continue
        for ranks in (1, 2, 3, 5):
            assert prepare(core, level, form, x, norm, ranks=ranks, rotated=rotated) == first
        for row in range(len(x)):
            alone = prepare(core, level, form, x[row : row + 1], norm, rotated=rotated)
            assert alone.data.tobytes() == first.data[row].tobytes()
            assert form == BF16 or alone.scale[0] == first.scale[row]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 16, 36])
@pytest.mark.parametrize("with_norm", [False, True])
def test_a_row_that_is_no_number_stays_none(
    core: ctypes.CDLL, level: int, bad: float, at: int, with_norm: bool
) -> None:
    x, norm = draw(3, 37, seed=3)
    x[1, at] = bad
    weight = norm if with_norm else None
    ints = prepare(core, level, INT8, x, weight)
    assert np.isnan(ints.scale).tolist() == [False, True, False]
    assert not ints.data[1].any()
    assert not ints.sums[1].any()
    halves = from_bf16(prepare(core, level, BF16, x, weight).data)
    assert np.isfinite(halves).all(1).tolist() == [True, False, True]


def test_rows_of_nothing_and_of_next_to_nothing_are_zeros(core: ctypes.CDLL, level: int) -> None:
    x = np.zeros((4, 20), np.float32)
    x[1] = 1e-40  # a denormal
    x[2] = 2e-38  # whose scale would be one
    x[3, 4] = 1e-30
    got = prepare(core, level, INT8, x)
    assert got.scale[:3].tolist() == [0.0, 0.0, 0.0]
    assert not got.data[:3].any()
    assert got.data[3, 4] == 127
    assert got.scale[3] == pytest.approx(1e-30 / 127)


def test_ties_round_to_even(core: ctypes.CDLL, level: int) -> None:
    x = np.array([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127.0]], np.float32)
    assert prepare(core, level, INT8, x).data[0, :8].tolist() == [127, 0, 2, 2, 0, -2, -2, -127]


def test_no_rows_are_none(core: ctypes.CDLL, level: int) -> None:
    assert prepare(core, level, INT8, np.zeros((0, 40), np.float32)).data.size == 0


@pytest.mark.parametrize("hidden", [1, 15, 33, 576])
def test_embedding_copies_rows(core: ctypes.CDLL, level: int, hidden: int) -> None:
    table = np.random.default_rng(4).integers(0, 1 << 15, (11, hidden)).astype(np.uint16)
    ids = np.array([10, 0, 3, 3, 7], np.int32)
    for ranks in (1, 2, 3, 7):
        x = np.full((len(ids), hidden), np.nan, np.float32)
        core.tg_probe_embed(
            level, ctypes.c_void_p(table.ctypes.data), len(table), hidden, ctypes.c_void_p(ids.ctypes.data), len(ids),
            ctypes.c_void_p(x.ctypes.data), ranks,
        )  # fmt: skip
        assert x.tobytes() == from_bf16(table[ids]).tobytes()
