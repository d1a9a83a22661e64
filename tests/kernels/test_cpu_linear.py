"""Native linear kernels against float32 of the same rounded values, and bit against bit between all their paths."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergate.kernels.native import library
from tiergate.kernels.native_linear import Epilogue, Rows, linear, prepare
from tiergate.kernels.packing import Format, PackedWeight, Shape, pack, pack_codes, pack_int8, unpack

SCALAR, AVX2, AVX512, AMX = range(4)
KINDS = [(Format.BF16, 0), (Format.INT8, 0), (Format.INT4, 32), (Format.INT4, 64)]
SIZES = [(1, 1), (16, 64), (17, 33), (50, 130), (96, 576), (80, 200)]
ROWS = [0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 49, 70]

kinds = pytest.mark.parametrize(("form", "group"), KINDS, ids=lambda value: getattr(value, "name", str(value)))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def have(level: int) -> bool:
    return bool(library().tg_best_level() >= level)


@pytest.fixture(
    scope="session",
    params=[SCALAR, AVX2, AVX512, pytest.param(AMX, marks=pytest.mark.amx)],
    ids=["scalar", "avx2", "avx512", "amx"],
)
def level(request: pytest.FixtureRequest) -> int:
    wanted: int = request.param
    if not have(wanted):
        pytest.skip("this machine does not have that level")
    return wanted


@pytest.fixture(scope="session")
def fused() -> None:
    """For tests of equal bits, which the scalar level does not give."""
    if not have(AVX2):
        pytest.skip("no fused multiply-add here")


def draw(form: Format, group: int, n: int, k: int, *, paired: bool = False, seed: int = 0) -> PackedWeight:
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) * 0.5
    return pack(Shape(form, n, k, group, paired), weight)


def inputs(m: int, k: int, form: Format, seed: int = 1) -> Rows:
    return prepare(torch.randn(m, k, generator=torch.Generator().manual_seed(seed)), form)


def in_parts(rows: Rows, size: int) -> list[Rows]:
    m = rows.data.shape[0]
    return [rows.select(torch.arange(at, min(at + size, m))) for at in range(0, m, size)]


def expected(weight: PackedWeight, rows: Rows) -> torch.Tensor:
    return (rows.values().double() @ unpack(weight).double().T).float()


def check(found: torch.Tensor, right: torch.Tensor, k: int) -> None:
    torch.testing.assert_close(found, right, rtol=1e-4, atol=2e-6 * k + 1e-5)


@kinds
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_it_is_a_product(level: int, form: Format, group: int, n: int, k: int) -> None:
    weight = draw(form, group, n, k)
    bias = torch.randn(n, generator=torch.Generator().manual_seed(2))
    for m in ROWS if level != SCALAR else ROWS[:6]:
        rows = inputs(m, k, form)
        check(linear(level, weight, rows, bias=bias), expected(weight, rows) + bias, k)


@kinds
@pytest.mark.parametrize("half", [1, 16, 17, 40])
@pytest.mark.parametrize("m", [1, 3, 20])
def test_a_gate_meets_its_up(level: int, form: Format, group: int, half: int, m: int) -> None:
    weight = draw(form, group, 2 * half, 96, paired=True)
    rows, bias = inputs(m, 96, form), torch.randn(2 * half, generator=torch.Generator().manual_seed(2))
    right = expected(weight, rows) + bias
    check(linear(level, weight, rows, bias=bias), right, 96)
    gate, up = right.chunk(2, 1)
    check(linear(level, weight, rows, bias=bias, epilogue=Epilogue.SWIGLU), F.silu(gate) * up, 96)


@kinds
@pytest.mark.parametrize("m", [1, 9])
def test_it_adds_in_place_and_writes_nowhere_else(level: int, form: Format, group: int, m: int) -> None:
    n, k = 50, 70
    weight, rows = draw(form, group, n, k), inputs(m, k, form)
    room = torch.arange(m * 64.0).view(m, 64)
    before, plain = room.clone(), linear(level, weight, rows)
    linear(level, weight, rows, epilogue=Epilogue.ADD, out=room[:, :n])
    assert torch.equal(room[:, :n], before[:, :n] + plain)
    assert torch.equal(room[:, n:], before[:, n:])


def everywhere(weight: PackedWeight, rows: Rows, epilogue: Epilogue) -> Iterator[tuple[str, torch.Tensor]]:
    """The same rows at all levels with fused multiply-add, among others and alone, by one rank and by several."""
    m = rows.data.shape[0]
    backwards = torch.arange(m).flip(0)
    for level in (AVX2, AVX512, AMX):
        if not have(level):
            continue
        for ranks in (1, 2, 3, 5):
            yield f"level {level}, {ranks} ranks", linear(level, weight, rows, epilogue=epilogue, ranks=ranks)
        yield f"level {level}, threads", linear(level, weight, rows, epilogue=epilogue, ranks=2, threads=True)
        turned = linear(level, weight, rows.select(backwards), epilogue=epilogue)
        yield f"level {level}, backwards", turned.flip(0)
        for size in (1, 2, 3, 7, 16):
            parts = in_parts(rows, size)
            found = torch.cat([linear(level, weight, part, epilogue=epilogue) for part in parts])
            yield f"level {level}, {size} a time", found


@pytest.mark.usefixtures("fused")
@kinds
@pytest.mark.parametrize(("n", "k"), [(32, 33), (96, 576), (34, 1536)])
@pytest.mark.parametrize("epilogue", [Epilogue.STORE, Epilogue.SWIGLU])
def test_a_row_has_the_same_bits_on_every_path(form: Format, group: int, n: int, k: int, epilogue: Epilogue) -> None:
    weight, rows = draw(form, group, n, k, paired=epilogue is Epilogue.SWIGLU), inputs(37, k, form)
    first: torch.Tensor | None = None
    for path, found in everywhere(weight, rows, epilogue):
        first = found if first is None else first
        assert torch.equal(found.view(torch.int32), first.view(torch.int32)), path


@pytest.mark.usefixtures("fused")
@kinds
def test_more_rows_than_a_chunk_have_the_bits_of_few(form: Format, group: int) -> None:
    weight, rows = draw(form, group, 48, 64), inputs(1100, 64, form)
    best = library().tg_best_level()
    alone = torch.cat([linear(AVX2, weight, part) for part in in_parts(rows, 2)])
    assert torch.equal(linear(best, weight, rows), alone)


@pytest.mark.usefixtures("fused")
@settings(max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 70),
    k=st.integers(1, 300),
    m=st.integers(0, 40),
    ranks=st.integers(1, 6),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e4]),
    seed=st.integers(0, 2**31),
)
def test_any_shape_gives_the_same_bits_at_each_level(
    kind: tuple[Format, int], n: int, k: int, m: int, ranks: int, scale: float, seed: int
) -> None:
    weight = draw(*kind, n, k, seed=seed)
    rows = prepare(torch.randn(m, k, generator=torch.Generator().manual_seed(seed)) * scale, kind[0])
    found = [linear(level, weight, rows, ranks=ranks) for level in (AVX2, AVX512, AMX) if have(level)]
    check(found[0] / scale, expected(weight, rows) / scale, k)
    assert all(torch.equal(each.view(torch.int32), found[0].view(torch.int32)) for each in found[1:])


def test_the_largest_integers_do_not_saturate(level: int) -> None:
    n, k = 20, 192
    values = torch.tensor([127, -128]).repeat(k // 2).expand(n, k).to(torch.int8).contiguous()
    weight = pack_int8(Shape(Format.INT8, n, k), values, torch.ones(n))
    for m in (1, 4):
        data = torch.tensor([127, -128]).repeat(k // 2).expand(m, k).to(torch.int8).contiguous()
        rows = Rows(data, torch.ones(m), data.view(m, -1, 32).sum(-1, dtype=torch.int32), k)
        assert (linear(level, weight, rows) == float((127**2 + 128**2) * k // 2)).all()


def test_denormals_are_zero(level: int) -> None:
    weight = pack(Shape(Format.BF16, 16, 64), torch.full((16, 64), 2.0**-130))
    rows = prepare(torch.full((20, 64), 2.0**60), Format.BF16)
    for m in (1, 20):
        found = linear(level, weight, rows.select(torch.arange(m)))
        assert (found == 0).all()


@kinds
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(("n", "k"), [(2, 1), (34, 65), (64, 576)])
def test_unpacking_gives_the_rounded_weight(form: Format, group: int, paired: bool, n: int, k: int) -> None:
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(3))
    found = unpack(pack(Shape(form, n, k, group, paired), weight))
    if form is Format.BF16:
        assert torch.equal(found, weight.bfloat16().float())
    elif form is Format.INT8:
        scale = weight.abs().amax(1, keepdim=True) / 127
        assert torch.equal(found, (weight / scale).round() * scale)
    else:
        grouped = F.pad(weight, (0, -k % group), value=torch.nan).view(n, -1, group)
        spread = grouped.nan_to_num(-torch.inf).amax(-1) - grouped.nan_to_num(torch.inf).amin(-1)
        step = (spread / 15).repeat_interleave(group, 1)[:, :k]
        assert ((found - weight).abs() <= 1.5 * step + 2e-3).all()


@pytest.mark.parametrize("group", [32, 64])
def test_four_bits_are_spent_better_than_on_a_plain_grid(group: int) -> None:
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(4))
    grouped = weight.view(64, -1, group)
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    step = (high - low) / 15
    plain = (((grouped - low) / step).round() * step + low).view_as(weight)
    found = unpack(pack(Shape(Format.INT4, 64, 512, group), weight))
    assert (found - weight).square().mean() < 0.93 * (plain - weight).square().mean()


def test_a_constant_group_is_exact() -> None:
    weight = torch.full((3, 64), 0.75)
    assert torch.equal(unpack(pack(Shape(Format.INT4, 3, 64, 32), weight)), weight)
    assert torch.equal(unpack(pack(Shape(Format.INT8, 3, 64), torch.zeros(3, 64))), torch.zeros(3, 64))


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("paired", [False, True])
def test_codes_are_kept_without_loss(group: int, paired: bool) -> None:
    n, k = 38, 192
    source = torch.Generator().manual_seed(5)
    codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, generator=source)
    scale, minimum = (torch.randn(n, k // group, generator=source).half() for _ in range(2))
    scale[0, 0], minimum[0, 0] = 2.0**-24, -(2.0**-20)  # float16 denormals
    found = unpack(pack_codes(Shape(Format.INT4, n, k, group, paired), codes, scale, minimum))
    right = scale.float().repeat_interleave(group, 1) * codes + minimum.float().repeat_interleave(group, 1)
    assert torch.equal(found, right)


@pytest.mark.parametrize("paired", [False, True])
def test_int8_values_are_kept_without_loss(paired: bool) -> None:
    source = torch.Generator().manual_seed(6)
    values = torch.randint(-128, 128, (18, 70), dtype=torch.int8, generator=source)
    scale = torch.rand(18, generator=source)
    packed = pack_int8(Shape(Format.INT8, 18, 70, paired=paired), values, scale)
    assert torch.equal(unpack(packed), values * scale[:, None])


@pytest.mark.parametrize(
    "shape",
    [
        Shape(Format.BF16, 0, 4),
        Shape(Format.BF16, 4, 0),
        Shape(Format.BF16, 3, 4, paired=True),
        Shape(Format.INT8, 4, 4, group=32),
        Shape(Format.INT4, 4, 64),
        Shape(Format.INT4, 4, 64, group=48),
        Shape(Format.BF16, -1, 4),
    ],
    ids=str,
)
def test_what_cannot_be_packed_is_refused(shape: Shape) -> None:
    with pytest.raises(ValueError, match="no packing"):
        _ = shape.bytes


def test_operands_that_do_not_fit_are_refused() -> None:
    shape = Shape(Format.INT4, 4, 64, 32)
    weight, codes, scale = torch.zeros(4, 64), torch.zeros(4, 64, dtype=torch.uint8), torch.zeros(4, 2).half()
    with pytest.raises(ValueError, match="expected"):
        pack(shape, weight[:3])
    with pytest.raises(ValueError, match="expected"):
        pack_codes(shape, codes, scale[:, :1], scale)
    with pytest.raises(ValueError, match="do not fit"):
        pack_codes(Shape(Format.INT8, 4, 64), codes, scale, scale)
    with pytest.raises(ValueError, match="do not fit"):
        pack_codes(Shape(Format.INT4, 4, 33, 32), codes[:, :33], scale, scale)
    with pytest.raises(ValueError, match="do not fit"):
        pack_int8(shape, codes.to(torch.int8), torch.zeros(4))
    with pytest.raises(ValueError, match="bytes in a row"):
        pack(shape, weight, torch.empty(5, dtype=torch.uint8))


def test_packing_goes_where_it_is_told() -> None:
    shape = Shape(Format.BF16, 16, 32)
    arena = torch.zeros(4096, dtype=torch.uint8)
    packed = pack(shape, torch.ones(16, 32), arena[1024 : 1024 + shape.bytes])
    assert packed.data.data_ptr() == arena.data_ptr() + 1024
    assert torch.equal(unpack(packed), torch.ones(16, 32))
    assert not arena[:1024].any()
    assert not arena[1024 + shape.bytes :].any()
