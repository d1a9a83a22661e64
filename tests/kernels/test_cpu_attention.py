"""The CPU core's attention: against PyTorch, and to the bit across levels, chunks, batches and ranks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.attention import Scene, Step, chunked, scene, stored
from tiergate.kernels import rope_angles
from tiergate.kernels.dispatch import Unavailable
from tiergate.kernels.native import library
from tiergate.kernels.native_attention import Batch, Floats, Run, Shape, aligned, attend, cache_bytes, rope_kv, scratch
from tiergate.kernels.native_attention import shares as shares_of
from tiergate.kernels.ops.norm_linear import rms_norm

pytestmark = pytest.mark.skipif(shutil.which("g++") is None and shutil.which("c++") is None, reason="no C++ compiler")

SCALAR, AVX2, AVX512, AMX = range(4)
LEVELS = (
    pytest.param(SCALAR, id="scalar"),
    pytest.param(AVX2, id="avx2"),
    pytest.param(AVX512, id="avx512"),
    pytest.param(AMX, id="amx", marks=pytest.mark.amx),
)
SHAPES = {
    "small-model": Shape(heads=9, kv_heads=3, head_dim=64, blocks=0),
    "odd-dim": Shape(heads=4, kv_heads=2, head_dim=33, blocks=0),
    "tiny-dim": Shape(heads=2, kv_heads=2, head_dim=10, blocks=0, block_size=48),
    "wide-group": Shape(heads=40, kv_heads=1, head_dim=32, blocks=0),
    "widest-head": Shape(heads=2, kv_heads=1, head_dim=256, blocks=0),
    "window": Shape(heads=8, kv_heads=2, head_dim=64, blocks=0, block_size=32, window=40),
    "long-window": Shape(heads=3, kv_heads=1, head_dim=64, blocks=0, window=300),
}
LENGTHS = (1, 37, 300, 700)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> int:
    return usable(request.param)


@pytest.fixture(params=(False, True), ids=("bf16", "int8"))
def int8(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def usable(level: int) -> int:
    if level > library().tg_best_level():
        pytest.skip(f"this machine has no level {level}")
    return level


def fused_levels() -> list[int]:
    """Levels that promise the same bits."""
    return list(range(AVX2, library().tg_best_level() + 1))


def shape_of(name: str, int8: bool) -> Shape:
    shape = SHAPES[name]
    return replace(shape, int8=int8, scale=shape.head_dim**-0.5)


def bits(rows: Sequence[Floats]) -> list[bytes]:
    return [part.tobytes() for part in rows]


def in_chunks(lengths: Sequence[int], sizes: Sequence[int]) -> list[Step]:
    """Every sequence cut into pieces of `sizes`, one piece of each in a step."""
    todo = [chunked(length, sizes) for length in lengths]
    return [
        [(s, pieces[index]) for s, pieces in enumerate(todo) if index < len(pieces)]
        for index in range(max(map(len, todo), default=0))
    ]


@pytest.mark.parametrize("name", SHAPES)
def test_it_is_softmax_attention(name: str, int8: bool, level: int) -> None:
    made = scene(shape_of(name, int8), LENGTHS)
    for got, want in zip(made.play(Run(level=level), made.whole()), made.expected(), strict=True):
        np.testing.assert_allclose(got, want, atol=0.02)


def test_a_long_context_is_softmax_attention(int8: bool, level: int) -> None:
    made = scene(replace(shape_of("small-model", int8), heads=1, kv_heads=1), (4096,))
    (got,) = made.play(Run(level=level), made.whole())
    np.testing.assert_allclose(got, made.expected()[0], atol=0.02)


@pytest.mark.parametrize("name", SHAPES)
def test_levels_give_the_same_bits(name: str, int8: bool) -> None:
    made = scene(shape_of(name, int8), LENGTHS)
    for steps in (made.whole(), in_chunks(LENGTHS, (3, 90))):
        outputs = [bits(made.play(Run(level=level), steps)) for level in fused_levels()]
        assert all(output == outputs[0] for output in outputs)


@pytest.mark.parametrize("name", SHAPES)
def test_chunks_and_batches_do_not_show(name: str, int8: bool, level: int) -> None:
    lengths = (5, 300, 290)
    made = scene(shape_of(name, int8), lengths)
    whole = bits(made.play(Run(level=level), made.whole()))
    assert bits(made.play(Run(level=level), in_chunks(lengths, (1,)))) == whole
    assert bits(made.play(Run(level=level), in_chunks(lengths, (64, 1, 2, 33)))) == whole
    one_by_one: list[Step] = [[(s, length)] for s, length in reversed(list(enumerate(lengths)))]
    assert bits(made.play(Run(level=level), one_by_one)) == whole


@pytest.mark.parametrize("name", ["small-model", "long-window"])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_the_number_of_ranks_does_not_show(name: str, ranks: int, int8: bool, level: int) -> None:
    made = scene(shape_of(name, int8), (810, 3, 290))
    steps: list[Step] = [[(0, 800), (1, 3), (2, 289)], [(0, 1), (2, 1)], [(0, 8)], [(0, 1)]]
    alone = bits(made.play(Run(level=level), steps))
    assert bits(made.play(Run(level=level, ranks=ranks, combine=True), steps)) == alone
    assert bits(made.play(Run(level=level, ranks=ranks, threads=True), steps)) == alone


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_nothing_but_the_sequence_shows(data: st.DataObject) -> None:
    kv_heads = data.draw(st.integers(1, 3))
    shape = Shape(
        heads=kv_heads * data.draw(st.integers(1, 9)),
        kv_heads=kv_heads,
        head_dim=data.draw(st.integers(1, 80)),
        blocks=0,
        block_size=16 * data.draw(st.integers(1, 4)),
        window=data.draw(st.sampled_from((0, 0, 1, 7, 200, 400))),
        int8=data.draw(st.booleans()),
        scale=data.draw(st.floats(0.05, 1)),
    )
    lengths = data.draw(st.lists(st.integers(1, 600), min_size=1, max_size=4))
    made = scene(shape, lengths, seed=data.draw(st.integers(0, 99)))
    plain = bits(made.play(Run(level=AVX2 if fused_levels() else SCALAR), made.whole()))
    sizes = data.draw(st.lists(st.integers(1, 130), min_size=1, max_size=5))
    level = data.draw(st.sampled_from(fused_levels() or [SCALAR]))
    run = Run(level=level, ranks=data.draw(st.integers(1, 5)), combine=data.draw(st.booleans()))
    assert bits(made.play(run, in_chunks(lengths, sizes))) == plain
    other_blocks = scene(replace(shape, block_size=16), lengths)
    elsewhere = Scene(other_blocks.shape, made.qkv, other_blocks.tables)
    assert bits(elsewhere.play(run, in_chunks(lengths, sizes))) == plain


def test_rejected_drafts_leave_no_trace(int8: bool, level: int) -> None:
    shape = shape_of("small-model", int8)
    made = scene(shape, (47,))
    poisoned = made.qkv[0].copy()
    poisoned[41:] = np.nan
    want = made.play(Run(level=level), [[(0, 41)], [(0, 2)], [(0, 1)], [(0, 3)]])
    cache = made.cache()
    Scene(made.shape, (poisoned,), made.tables).play(Run(level=level), [[(0, 47)]], cache)
    assert bits(made.play(Run(level=level), [[(0, 41)], [(0, 2)], [(0, 1)], [(0, 3)]], cache)) == bits(want)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_broke_are_seen_by_all_that_follow_and_by_nobody_else(bad: float, int8: bool, level: int) -> None:
    made = scene(shape_of("small-model", int8), (80, 30))
    whole = made.play(Run(level=level), [[(0, 40), (1, 30)], [(0, 40)]])
    broken = made.qkv[0].copy()
    broken[40] = bad
    poisoned = Scene(made.shape, (broken, made.qkv[1]), made.tables)
    first, second = poisoned.play(Run(level=level), [[(0, 40), (1, 30)], [(0, 40)]])
    assert bits([first[:40], second]) == bits([whole[0][:40], whole[1]])
    assert np.isnan(first[40:] if np.isnan(bad) else first[40]).all()


def test_steps_without_rows(level: int) -> None:
    made = scene(shape_of("small-model", False), (20, 6))
    assert bits(made.play(Run(level=level, ranks=2), [[], [(0, 20), (1, 0)], [(1, 6)]])) == bits(
        made.play(Run(level=level), made.whole())
    )


def test_scratch_memory_is_as_large_as_it_says(int8: bool, level: int) -> None:
    made = scene(shape_of("small-model", int8), (900,))
    run, cache = Run(level=level, ranks=3, combine=True), made.cache()
    made.play(run, [[(0, 899)]], cache)
    size = len(scratch(made.shape, run.ranks))
    memory = aligned(size + 4096)
    memory[size:] = 0x5A
    for rows in (1, 8, 899):
        batch = Batch(np.array([0, rows], np.int32), np.array([899], np.int32), np.zeros(1, np.int32), made.tables)
        attend(made.shape, batch, run, np.zeros((rows, 9, 64), np.uint16), cache, memory)
    assert (memory[size:] == 0x5A).all()


@pytest.mark.parametrize("queries", [(1,) * 7, (1,), (512,), (300, 1, 1, 1, 1)])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_get_equal_shares(queries: tuple[int, ...], ranks: int) -> None:
    shape = shape_of("small-model", False)
    lengths = np.array([4000 + 100 * s for s in range(len(queries))], np.int32)
    starts = np.cumsum([0, *queries], dtype=np.int32)
    tables = np.zeros((len(queries), 1), np.int32)
    shares = shares_of(shape, Batch(starts, lengths, np.arange(len(queries), dtype=np.int32), tables), ranks)
    pairs = sum(9 * q * int(length) for q, length in zip(queries, lengths, strict=True))
    assert sum(shares) >= 0.9 * pairs
    if len(set(queries)) == 1:
        assert max(shares) <= 1.2 * pairs / ranks


@pytest.mark.parametrize(
    ("dim", "rotary", "normed"), [(64, 64, False), (33, 0, True), (24, 10, True), (10, 8, False), (256, 256, True)]
)
def test_rotation_norms_and_the_cache_write(dim: int, rotary: int, normed: bool, int8: bool, level: int) -> None:
    heads, kv_heads, lengths = 6, 2, (1, 20, 45)
    shape = Shape(heads=heads, kv_heads=kv_heads, head_dim=dim, blocks=0, rope_dim=rotary, block_size=32, int8=int8)
    made = scene(shape, lengths)
    shape, generator = made.shape, torch.Generator().manual_seed(1)
    norms = 1 + 0.2 * torch.randn(2, dim, generator=generator)
    starts = np.cumsum([0, *lengths], dtype=np.int32)
    batch = Batch(starts, np.array(lengths, np.int32), np.arange(3, dtype=np.int32), made.tables)
    frequencies = 10.0 ** -torch.linspace(0, 3, rotary // 2)
    cos, sin = rope_angles(torch.from_numpy(batch.positions).long(), frequencies, 1.1, torch.float32)
    qkv, half = torch.from_numpy(np.concatenate(made.qkv)), rotary // 2

    def run(level: int, ranks: int) -> tuple[torch.Tensor, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
        cache = aligned(cache_bytes(shape))
        cache[:] = 0xFF
        queries = rope_kv(
            shape, batch, Run(level=level, ranks=ranks, threads=True), qkv.numpy().copy(), cache,
            cos=np.ascontiguousarray(cos[:, :half].numpy()), sin=np.ascontiguousarray(sin[:, half:].numpy()),
            q_norm=norms[0].numpy() if normed else None, k_norm=norms[1].numpy() if normed else None,
        )  # fmt: skip
        return torch.from_numpy(queries.astype(np.int16)).view(torch.bfloat16).float(), cache

    queries, cache = run(level, 1)
    q, k, v = torch.split(qkv.view(len(qkv), -1, dim).clone(), [heads, kv_heads, kv_heads], 1)
    if normed:
        q, k = rms_norm(q, norms[0], shape.eps), rms_norm(k, norms[1], shape.eps)
    q, k = (_rotated(x, cos, sin, rotary) for x in (q, k))
    torch.testing.assert_close(queries[..., :dim], q, rtol=2**-8, atol=1e-5)
    assert not queries[..., dim:].any()
    for s, length in enumerate(lengths):
        keys, values = stored(shape, cache, made.tables[s], length)
        for got, want in ((keys, k), (values, v)):
            exact = want[starts[s] : starts[s + 1]]
            room = exact.abs().amax(-1, keepdim=True) / 253 if int8 else exact.abs() * 2**-8 + 1e-5
            assert ((got - exact).abs() <= room).all()
    for other in fused_levels() if level else [level]:
        for ranks in (1, 4):
            same_queries, same_cache = run(other, ranks)
            assert torch.equal(same_queries, queries)
            assert np.array_equal(same_cache, cache)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rotary: int) -> torch.Tensor:
    turned, rest = x[..., :rotary], x[..., rotary:]
    first, second = turned.chunk(2, -1)
    swapped = torch.cat((second, first), -1)
    return torch.cat((turned * cos[:, None] + swapped * sin[:, None], rest), -1)


def test_a_level_that_there_is_none_of(int8: bool) -> None:
    made = scene(shape_of("small-model", int8), (3,))
    with pytest.raises(Unavailable, match="level 4"):
        made.play(Run(level=4), made.whole())
