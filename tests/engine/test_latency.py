"""The step-time model: what it learns, how fast it follows, and what little a stall does to it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergate.engine.latency import HALF_LIFE, LatencyModel, Shape, with_chunk

KV_BYTES = 23_040


def machine(shape: Shape, pace: float = 1.0) -> float:
    """Seconds on a machine that is unlike the model's first guess: cheap attention, dear products."""
    weights = 0.004 + 0.0002 * shape.rows + 0.002 * (shape.rows > 16)
    return pace * (weights + 1.1e-6 * shape.context + 6e-8 * shape.pairs)


def steps(count: int, seed: int = 0) -> list[Shape]:
    """Decode steps and steps with a chunk, as a lane would take them."""
    rng = random.Random(seed)
    shapes = []
    for _ in range(count):
        rows = rng.choice((1, 2, 3, 7, 16, 24, 40))
        shape = Shape(rows, rows * rng.randint(50, 1500))
        if rng.random() < 0.4:
            shape = with_chunk(shape, rng.randint(0, 3000), rng.choice((5, 30, 100, 300)))
        shapes.append(shape)
    return shapes


def taught(count: int = 600, pace: float = 1.0) -> LatencyModel:
    model = LatencyModel(KV_BYTES)
    for shape in steps(count):
        model.observe(shape, machine(shape, pace))
    return model


def error(model: LatencyModel, shape: Shape, pace: float = 1.0) -> float:
    return abs(math.log(model.predict(shape) / machine(shape, pace)))


def test_the_first_step_says_something_about_all() -> None:
    model = LatencyModel(KV_BYTES)
    assert not model.known
    model.observe(Shape(128), 0.1)
    assert model.known
    assert model.predict(Shape(128)) == pytest.approx(0.1, rel=0.01)
    assert model.predict(Shape(1)) < 0.05
    assert model.predict(Shape(512)) > 0.2


@pytest.mark.parametrize("pace", [0.2, 1.0, 5.0])
def test_it_learns_the_machine(pace: float) -> None:
    model = taught(pace=pace)
    errors = sorted(error(model, shape, pace) for shape in steps(300, seed=1))
    assert errors[150] < 0.03
    assert errors[285] < 0.1


def test_it_follows_a_change_of_pace_within_some_steps() -> None:
    model = taught()
    shape = Shape(16, 4000)
    for _ in range(50):
        model.observe(shape, machine(shape))
    for _ in range(HALF_LIFE):
        model.observe(shape, machine(shape, 3.0))
    assert 0.3 < error(model, shape, 3.0) / math.log(3.0) < 0.6
    for _ in range(4 * HALF_LIFE):
        model.observe(shape, machine(shape, 3.0))
    assert error(model, shape, 3.0) < 0.1
    other = Shape(3, 900)
    assert error(model, other, 3.0) < 0.5, "the pace is that of the whole machine"


def test_a_stall_is_not_taken_for_the_rule() -> None:
    model = taught()
    shape = Shape(16, 4000)
    before = model.predict(shape)
    model.observe(shape, 100 * machine(shape))
    assert model.predict(shape) < 1.2 * before


def test_it_learns_on_a_machine_that_others_use() -> None:
    """Times that vary by a third, and every fiftieth step twenty times too long."""
    rng = random.Random(3)
    model = LatencyModel(KV_BYTES)
    for shape in steps(600):
        stall = 20.0 if rng.random() < 0.02 else 1.0
        model.observe(shape, stall * machine(shape) * math.exp(rng.gauss(0.0, 0.3)))
    errors = sorted(error(model, shape) for shape in steps(300, seed=1))
    assert errors[285] < 0.3


def test_steps_observed_together_tell_as_much_as_one_by_one() -> None:
    apart, together = LatencyModel(KV_BYTES), LatencyModel(KV_BYTES)
    shape = Shape(16, 4000)
    for _ in range(20):
        apart.observe(shape, machine(shape))
        together.observe(shape, machine(shape))
    for _ in range(5):
        for _ in range(4):
            apart.observe(shape, machine(shape, 2.0))
        together.observe(shape, machine(shape, 2.0), steps=4)
    assert error(together, shape, 2.0) == pytest.approx(error(apart, shape, 2.0), abs=0.1)


def test_a_clock_that_stands_still_is_survived() -> None:
    model = LatencyModel(KV_BYTES)
    for shape in steps(50):
        model.observe(shape, 0.0)
        assert model.predict(shape) > 0


@given(
    st.lists(
        st.tuples(st.integers(1, 2000), st.integers(0, 100_000), st.integers(0, 10**7), st.floats(0, 50)), max_size=60
    ),
    st.integers(1, 1000),
    st.integers(1, 700),
)
@settings(max_examples=100)
def test_whatever_is_observed(observed: list[tuple[int, int, int, float]], rows: int, most: int) -> None:
    model = LatencyModel(KV_BYTES)
    model.observe(Shape(1), 0.01)
    for seen, context, pairs, seconds in observed:
        model.observe(Shape(seen, context, pairs), seconds)
    shape = Shape(rows, 100 * rows)
    seconds = model.predict(shape)
    assert 0 < seconds < math.inf
    assert 0 < model.utilisation(shape, most) <= 1
    count = model.most_steps(shape, 0.02)
    assert count == 1 or count * seconds <= 0.02


@given(st.integers(1, 64), st.integers(0, 8000), st.integers(0, 512), st.floats(0.001, 0.3))
@settings(max_examples=100)
def test_the_largest_chunk_fits_and_the_next_does_not(rows: int, start: int, most: int, limit: float) -> None:
    model = taught(200)
    decoding = Shape(rows, 300 * rows)
    chunk = model.largest_chunk(decoding, start, most, limit)
    assert 0 <= chunk <= most
    if chunk:
        assert model.predict(with_chunk(decoding, start, chunk)) <= limit
    if chunk < most and model.predict(with_chunk(decoding, start, most)) > limit:
        assert model.predict(with_chunk(decoding, start, chunk + 1)) > limit


def test_full_steps_are_used_best() -> None:
    model = taught()
    use = [model.utilisation(Shape(rows, 0), 512) for rows in (1, 4, 16, 64, 512)]
    assert use == sorted(use)
    assert use[-1] > 0.9
    assert model.utilisation(Shape(8, 8 * 3000), 512) < model.utilisation(Shape(8, 8), 512)
