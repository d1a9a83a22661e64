"""The compute threads: lockstep at the barrier, sleep between runs, denormals, an orderly end."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

from tiergate.kernels.dispatch import Unavailable
from tiergate.kernels.native import library


@pytest.fixture(scope="module")
def core() -> ctypes.CDLL:
    try:
        found = library()
    except Unavailable as why:
        pytest.skip(str(why))
    found.tg_pool_open.restype = ctypes.c_void_p
    found.tg_pool_close.argtypes = (ctypes.c_void_p,)
    found.tg_probe_pool_count.argtypes = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
    found.tg_probe_pool_halve.argtypes = (ctypes.c_void_p, ctypes.c_float, ctypes.c_void_p)
    found.tg_probe_pool_halve.restype = None
    found.tg_probe_pool_read.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    found.tg_probe_pool_read.restype = ctypes.c_uint64
    return found


@pytest.fixture(params=[1, 2, 3, 5])
def threads(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.fixture
def pool(core: ctypes.CDLL, threads: int) -> Iterator[int]:
    made = core.tg_pool_open(threads)
    assert made
    yield made
    core.tg_pool_close(made)


def tasks() -> int:
    return len(os.listdir("/proc/self/task"))


def test_threads_pass_every_barrier_together(core: ctypes.CDLL, pool: int, threads: int) -> None:
    turns = np.zeros(threads, np.int32)
    for run in range(1, 6):
        assert core.tg_probe_pool_count(pool, 200, turns.ctypes.data) == 0
        assert turns.tolist() == [200 * run] * threads


def test_a_pool_that_fell_asleep_wakes_up(core: ctypes.CDLL, pool: int, threads: int) -> None:
    turns = np.zeros(threads, np.int32)
    for _ in range(3):
        time.sleep(0.02)  # longer than any worker spins
        assert core.tg_probe_pool_count(pool, 1, turns.ctypes.data) == 0
    assert turns.tolist() == [3] * threads


def test_idle_threads_take_no_time(core: ctypes.CDLL, pool: int, threads: int) -> None:
    turns = np.zeros(threads, np.int32)
    core.tg_probe_pool_count(pool, 1, turns.ctypes.data)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


def test_denormals_are_zero_in_every_thread_of_a_run_and_nowhere_else(
    core: ctypes.CDLL, pool: int, threads: int
) -> None:
    tiny = np.float32(1.5e-38)
    out = np.ones(threads, np.float32)
    core.tg_probe_pool_halve(pool, float(tiny), out.ctypes.data)
    assert out.tolist() == [0.0] * threads
    assert np.float32(tiny) * np.float32(0.5) > 0


def test_closing_ends_the_threads(core: ctypes.CDLL, threads: int) -> None:
    before = tasks()
    made = core.tg_pool_open(threads)
    assert tasks() == before + threads - 1
    core.tg_pool_close(made)
    assert tasks() == before


@pytest.mark.parametrize("count", [0, 8, 24, 800])
def test_all_threads_together_read_everything(core: ctypes.CDLL, pool: int, count: int) -> None:
    data = np.random.default_rng(count).integers(0, 1 << 63, count, np.uint64)
    assert core.tg_probe_pool_read(pool, data.ctypes.data, count) == np.bitwise_xor.reduce(data)


@pytest.mark.parametrize("count", [0, -1, 1025])
def test_a_pool_of_an_impossible_size_is_not_opened(core: ctypes.CDLL, count: int) -> None:
    assert core.tg_pool_open(count) is None


def test_workers_leave_signals_to_others(core: ctypes.CDLL) -> None:
    before = set(os.listdir("/proc/self/task"))
    made = core.tg_pool_open(3)
    workers = set(os.listdir("/proc/self/task")) - before
    assert len(workers) == 2
    for worker in workers:
        with open(f"/proc/self/task/{worker}/status") as file:
            blocked = next(line.split()[1] for line in file if line.startswith("SigBlk"))
        assert int(blocked, 16) >> 1 & 1  # SIGINT is signal 2
    core.tg_pool_close(made)
