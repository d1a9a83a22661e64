"""Blocks that leave the cache and come back: the same tokens, less work, and nothing for who must not have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.model import FakeRunner
from fakes.step_model import FakeStepRunner
from support.cores import Clock, Heard, naive_greedy, request, run
from tiergate.engine import LaneConfig
from tiergate.engine.block_pool import keyed_digest
from tiergate.engine.core import EngineCore
from tiergate.engine.lane import Lane
from tiergate.engine.messages import LaneStats
from tiergate.engine.tiering.carrier import Carrier
from tiergate.engine.tiering.host import HostShelf
from tiergate.engine.tiering.open import secret_of
from tiergate.engine.tiering.saved import Saved
from tiergate.engine.tiering.worth import Rate, places

RNG = np.random.default_rng(11)
PROMPTS = [RNG.integers(1, 64, size=int(size)).tolist() for size in RNG.integers(20, 44, size=9)]
"""Together more than the small pool below holds."""
BLOCK = 32
"""Bytes of the fake's keys and values a block."""


def opened(*, clock: Callable[[], float] = Clock(), **settings: object) -> EngineCore:  # noqa: B008  (it stands still)
    """A core on 14 blocks of 4 tokens; `settings` are the lane's. Time stands still, so that nobody's patience ends."""
    given = {"name": "a", "model": "fake", "max_batch_tokens": 16, "max_sequences": 8, **settings}
    config = LaneConfig(**given)  # type: ignore[arg-type]
    secret = secret_of(config) or b"test"
    runner = FakeStepRunner(blocks=14)
    return EngineCore([Lane(config, runner, digest=keyed_digest(secret), clock=clock)], seeds=lambda: 7)


def stats(core: EngineCore) -> LaneStats:
    return core.stats().lanes["a"]


def serve(core: EngineCore, salt: str = "", name: str = "x", **more: object) -> list[Heard]:
    """All prompts, one after another; fetched blocks may be waited for."""
    heard = []
    for index, prompt in enumerate(PROMPTS):
        heard.append(run(core, [request(f"{name}{index}", prompt, salt=salt, **more)], steps=10**7)[f"{name}{index}"])  # type: ignore[arg-type]
    return heard


def check(heard: list[Heard]) -> None:
    for prompt, one in zip(PROMPTS, heard, strict=True):
        assert one.ids == naive_greedy(prompt, 12)


def disk(tmp_path: Path, blocks: int = 200) -> dict[str, object]:
    return {"kv_disk_bytes": 4096 * (blocks + 1), "kv_disk_path": str(tmp_path / "kv")}


@pytest.fixture(autouse=True)
def _slow_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing is always dearer than copying: how fast this machine is today is not the question."""
    monkeypatch.setattr(Lane, "_seconds_of_block", lambda self, number, tokens: 1.0)


def test_without_tiers_what_was_evicted_is_computed_again() -> None:
    core = opened()
    check(serve(core))
    before = stats(core).cached_tokens
    check(serve(core, name="y"))
    assert stats(core).cached_tokens - before < 50


@pytest.mark.parametrize("where", ["host", "disk", "both"])
def test_swapped_out_and_in_the_stream_is_the_same(where: str, tmp_path: Path) -> None:
    settings: dict[str, object] = {} if where == "host" else disk(tmp_path)
    if where != "disk":
        settings["kv_host_bytes"] = BLOCK * (200 if where == "host" else 6)
    core = opened(**settings)
    check(serve(core))
    before = stats(core)
    assert (before.host_blocks > 0) == (where != "disk")
    check(serve(core, name="y"))
    after = stats(core)
    assert after.restored_blocks > 10
    whole = sum((len(prompt) - 1) // 4 * 4 for prompt in PROMPTS)
    assert after.cached_tokens - before.cached_tokens == whole
    core.close()


def test_together_they_are_served_the_same(tmp_path: Path) -> None:
    core = opened(**disk(tmp_path), kv_host_bytes=BLOCK * 10)
    for turn in range(3):
        heard = run(core, [request(f"{turn} {i}", p) for i, p in enumerate(PROMPTS)], steps=10**7)
        check([heard[f"{turn} {i}"] for i in range(len(PROMPTS))])
    assert stats(core).restored_blocks > 0
    core.close()


def test_another_salt_finds_nothing(tmp_path: Path) -> None:
    core = opened(**disk(tmp_path), kv_host_bytes=BLOCK * 20)
    check(serve(core, "mine"))
    restored, cached = stats(core).restored_blocks, stats(core).cached_tokens
    check(serve(core, "yours", name="y"))
    assert stats(core).restored_blocks == restored
    assert stats(core).cached_tokens == cached
    check(serve(core, "mine", name="z"))
    assert stats(core).restored_blocks > restored
    core.close()


def test_what_must_not_be_stored_goes_nowhere(tmp_path: Path) -> None:
    core = opened(**disk(tmp_path), kv_host_bytes=BLOCK * 200)
    check(serve(core, store=False))
    core.close()
    assert stats(core).host_blocks == stats(core).stored_blocks == 0


def test_a_restart_finds_the_blocks_on_disk(tmp_path: Path) -> None:
    first = opened(**disk(tmp_path), kv_host_bytes=BLOCK * 5)
    check(serve(first))
    first.close()
    second = opened(**disk(tmp_path), kv_host_bytes=BLOCK * 5)
    assert stats(second).stored_blocks > 50
    check(serve(second, name="y"))
    assert stats(second).cached_tokens == sum((len(prompt) - 1) // 4 * 4 for prompt in PROMPTS)
    second.close()


def test_another_secret_finds_nothing(tmp_path: Path) -> None:
    first = opened(**disk(tmp_path))
    serve(first)
    first.close()
    (tmp_path / "kv" / "a.key").unlink()
    second = opened(**disk(tmp_path))
    assert stats(second).stored_blocks > 0
    check(serve(second, name="y"))
    assert stats(second).restored_blocks == 0
    second.close()


def test_damaged_blocks_are_computed_again(tmp_path: Path) -> None:
    first = opened(**disk(tmp_path))
    check(serve(first))
    first.close()
    path = tmp_path / "kv" / "a.kv"
    data = bytearray(path.read_bytes())
    for at in range(4096 + 64 + 32 + 8, len(data), 4096):
        data[at] ^= 1
    path.write_bytes(data)
    second = opened(**disk(tmp_path))
    check(serve(second, name="y"))
    assert stats(second).restored_blocks == 0
    second.close()


def test_a_file_in_use_costs_the_tier_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = opened(**disk(tmp_path))
    second = opened(**disk(tmp_path))
    assert "no KV blocks are kept on disk" in caplog.text
    check(serve(second))
    assert stats(second).stored_blocks == 0
    first.close()


def test_a_store_that_never_answers_is_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(**disk(tmp_path))
    serve(first)
    first.close()
    monkeypatch.setattr(Carrier, "get", lambda self, key: None)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1e-3
        return now

    second = opened(clock=clock, **disk(tmp_path))
    check(serve(second, name="y"))
    assert stats(second).restored_blocks == 0
    assert now < 60
    second.close()


def test_what_is_not_worth_copying_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lane, "_seconds_of_block", lambda self, number, tokens: 0.0)
    core = opened(kv_host_bytes=BLOCK * 200)
    check(serve(core))
    assert stats(core).host_blocks == 0


def test_a_runner_that_cannot_move_blocks_has_no_tiers(caplog: pytest.LogCaptureFixture) -> None:
    class Still(FakeRunner):
        read_block = None  # type: ignore[assignment]

    config = LaneConfig(name="a", model="fake", kv_host_bytes=1000)
    runner = Still()
    lane = Lane(config, runner, digest=keyed_digest(b"x"), clock=Clock())
    assert lane.stats().host_blocks == 0


def test_no_secret_is_made_for_what_needs_none(tmp_path: Path) -> None:
    config = LaneConfig(name="a", model="fake", kv_disk_path=str(tmp_path / "kv"))
    assert secret_of(config) is None
    assert not (tmp_path / "kv").exists()
    assert secret_of(replace(config, kv_disk_bytes=1 << 20)) is not None


@given(
    size=st.integers(1, 1 << 30),
    compute=st.floats(0, 100, allow_nan=False),
    rate=st.floats(1e3, 1e12),
    slower=st.floats(1, 1e6),
)
def test_worth_follows_the_costs(size: int, compute: float, rate: float, slower: float) -> None:
    here = places(size, compute, Rate(rate), Rate(rate / slower, 1e-3))
    assert here.host == (size / rate < compute)
    assert here.host or not here.disk  # what is too slow from memory is too slow from a disk
    dearer = places(size, compute * 2 + 1, Rate(rate), Rate(rate / slower, 1e-3))
    assert (dearer.host, dearer.disk) >= (here.host, here.disk)


def test_a_rate_follows_what_is_measured() -> None:
    rate = Rate(1e9, 1e-3)
    assert rate.seconds(10**9) == pytest.approx(1.001)
    for _ in range(60):
        rate = rate.seen(10**8, 1.001)
    assert rate.bytes_per_second == pytest.approx(1e8, rel=1e-3)


@given(st.lists(st.tuples(st.sampled_from(["put", "take"]), st.integers(0, 9), st.integers(1, 40)), max_size=60))
def test_host_memory_stays_within_its_budget(actions: list[tuple[str, int, int]]) -> None:
    shelf = HostShelf(100)
    there: dict[bytes, int] = {}
    for action, number, size in actions:
        name = bytes([number])
        if action == "put":
            there.pop(name, None)
            gone = shelf.put(name, Saved(b"", b"", bytes(size)))
            there[name] = size
            for old, _ in gone:
                del there[old]
        else:
            taken = shelf.take(name)
            assert (taken is not None) == (there.pop(name, None) is not None)
        assert shelf.bytes == sum(there.values()) <= 100
        assert all(one in shelf for one in there)
        assert len(shelf) == len(there)
