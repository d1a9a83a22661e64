"""Reserve, then settle exactly once, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergate.budget import Ask, Balance, BudgetExceeded, Grant, Ledger, NeverFits, Spent, StoreUnavailable, Tenant
from tiergate.budget.sqlite_books import SqliteBooks
from tiergate.budget.store import Hold, Lease, Refused, Store
from tiergate.budget.stores.memory import MemoryStore
from tiergate.budget.stores.sqlite import SqliteStore

NOON = 1_799_971_200.0 + 43_200
"""Of 2027-01-15, unix time."""
FREE = Tenant(id="free")
LIMITED = Tenant(id="limited", day_tokens=1000)
ASK = Ask(prompt_tokens=20, room=4000, default_max_tokens=80)


@dataclass
class Clock:
    now: float = NOON

    def __call__(self) -> float:
        return self.now


class Flaky:
    """A store that can be out of reach, or late, before it does what the store behind it does."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.down = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def _pass(self) -> None:
        if self.down:
            raise StoreUnavailable("down")
        await self.gate.wait()

    async def reserve(self, hold: Hold) -> Refused | None:
        if self.down:
            raise StoreUnavailable("down")
        refused = await self.store.reserve(hold)
        await self.gate.wait()
        return refused

    async def settle(self, id: str, tokens: int) -> bool:
        await self._pass()
        return await self.store.settle(id, tokens)

    async def renew(self, leases: Sequence[Lease]) -> None:
        await self._pass()
        await self.store.renew(leases)

    async def expire(self, now: float) -> int:
        await self._pass()
        return await self.store.expire(now)

    async def balance(self, tenant: str, window: str) -> Balance:
        return await self.store.balance(tenant, window)

    async def check(self) -> None:
        await self.store.check()

    async def close(self) -> None:
        await self.store.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Flaky]:
    yield Flaky(MemoryStore() if request.param == "memory" else SqliteStore(SqliteBooks(tmp_path / "b"), lag=0.0))


@pytest_asyncio.fixture
async def ledger(store: Flaky, clock: Clock) -> AsyncIterator[Ledger]:
    async with Ledger(store, clock) as ledger:
        yield ledger
        await ledger.check()


async def books(ledger: Ledger, tenant: Tenant) -> tuple[int, int, int, int]:
    balance = await ledger.balance(tenant)
    return balance.reserved, balance.spent, balance.open_grants, balance.settled_grants


async def until(ask: Callable[[], Awaitable[object]], answer: object) -> None:
    for _ in range(1000):
        if await ask() == answer:
            return
        await asyncio.sleep(0.001)


def spent(completion: int, prompt: int = 20) -> Spent:
    return Spent(prompt_tokens=prompt, completion_tokens=completion)


@pytest.mark.parametrize("tenant", [FREE, LIMITED])
async def test_the_difference_is_given_back(ledger: Ledger, tenant: Tenant) -> None:
    grant = await ledger.reserve(tenant, ASK)
    assert (grant.tenant, grant.reserved, grant.limits.max_tokens) == (tenant.id, 100, 80)
    assert await books(ledger, tenant) == (100, 0, 1, 0)
    assert await ledger.settle(grant, spent(30))
    assert await books(ledger, tenant) == (0, 50, 0, 1)
    assert not await ledger.settle(grant, spent(30))
    assert await books(ledger, tenant) == (0, 50, 0, 1)


async def test_the_worst_case_is_reserved(ledger: Ledger) -> None:
    ask = Ask(prompt_tokens=20, room=4000, default_max_tokens=9, max_tokens=50, choices=3, attempts=2)
    assert (await ledger.reserve(FREE, ask)).reserved == (20 + 50 * 3) * 2


async def test_grants_have_names_of_their_own(clock: Clock) -> None:
    ids = set()
    for _ in range(3):
        async with Ledger(MemoryStore(), clock) as ledger:
            ids.update([(await ledger.reserve(FREE, ASK)).id for _ in range(5)])
    assert len(ids) == 15


async def test_what_never_fits_is_told_apart(ledger: Ledger) -> None:
    with pytest.raises(NeverFits) as never:
        await ledger.reserve(LIMITED, Ask(prompt_tokens=20, room=4000, default_max_tokens=981))
    assert (never.value.scope, never.value.window, never.value.limit, never.value.asked) == (
        "tenant limited", "day", 1000, 1001,
    )  # fmt: skip
    assert await books(ledger, LIMITED) == (0, 0, 0, 0)


async def test_a_spent_day_frees_at_midnight(ledger: Ledger, clock: Clock) -> None:
    grant = await ledger.reserve(LIMITED, Ask(prompt_tokens=20, room=4000, default_max_tokens=980))
    await ledger.settle(grant, spent(930))
    with pytest.raises(BudgetExceeded) as exceeded:
        await ledger.reserve(LIMITED, ASK)
    error = exceeded.value
    assert (error.scope, error.window, error.limit, error.used, error.asked, error.retry_after) == (
        "tenant limited", "day", 1000, 950, 100, 43_200.0,
    )  # fmt: skip
    clock.now += 43_199
    with pytest.raises(BudgetExceeded):
        await ledger.reserve(LIMITED, ASK)
    clock.now += 1
    grant = await ledger.reserve(LIMITED, ASK)
    assert await books(ledger, LIMITED) == (100, 0, 1, 0)
    clock.now += 86_400
    await ledger.settle(grant, spent(10))
    clock.now -= 86_400
    assert await books(ledger, LIMITED) == (0, 30, 0, 1)


async def test_a_day_full_of_reservations_frees_soon(ledger: Ledger) -> None:
    grants = [await ledger.reserve(LIMITED, ASK) for _ in range(10)]
    with pytest.raises(BudgetExceeded) as exceeded:
        await ledger.reserve(LIMITED, ASK)
    assert exceeded.value.retry_after == 1.0
    await ledger.settle(grants[0], spent(0, prompt=0))
    assert await ledger.reserve(LIMITED, ASK)


async def test_concurrent_requests_never_pass_the_limit(ledger: Ledger) -> None:
    peak = 0

    async def request(n: int) -> bool:
        nonlocal peak
        try:
            grant = await ledger.reserve(LIMITED, ASK)
        except BudgetExceeded:
            return False
        reserved, used, _, _ = await books(ledger, LIMITED)
        peak = max(peak, reserved + used)
        await asyncio.sleep(0)
        return await ledger.settle(grant, spent(n % 80))

    done = sum(await asyncio.gather(*(request(n) for n in range(100))))
    reserved, used, opened, settled = await books(ledger, LIMITED)
    assert done >= 10
    assert (reserved, opened, settled) == (0, 0, done)
    assert used <= peak <= 1000


@pytest.mark.parametrize("tenant", [FREE, LIMITED])
async def test_cancelled_while_reserving(ledger: Ledger, store: Flaky, tenant: Tenant) -> None:
    store.gate.clear()
    task = asyncio.create_task(ledger.reserve(tenant, ASK))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert (await books(ledger, tenant))[:3] == (100, 0, 1)
    store.gate.set()
    await until(lambda: books(ledger, tenant), (0, 0, 0, 1))
    assert await books(ledger, tenant) == (0, 0, 0, 1)


async def test_cancelled_while_settling(ledger: Ledger, store: Flaky) -> None:
    grant = await ledger.reserve(FREE, ASK)
    store.gate.clear()
    task = asyncio.create_task(ledger.settle(grant, spent(30)))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    store.gate.set()
    assert not await ledger.settle(grant, spent(99))
    await ledger.keep()
    assert await books(ledger, FREE) == (0, 50, 0, 1)
    await ledger.keep()
    assert await books(ledger, FREE) == (0, 50, 0, 1)


async def test_a_settlement_outlives_a_store_that_is_down(ledger: Ledger, store: Flaky) -> None:
    grant = await ledger.reserve(FREE, ASK)
    store.down = True
    assert not await ledger.settle(grant, spent(30))
    with pytest.raises(StoreUnavailable):
        await ledger.reserve(FREE, ASK)
    with pytest.raises(StoreUnavailable):
        await ledger.keep()
    assert await books(ledger, FREE) == (100, 0, 1, 0)
    store.down = False
    await ledger.keep()
    assert await books(ledger, FREE) == (0, 50, 0, 1)


async def test_leases_are_kept_while_the_process_lives(ledger: Ledger, clock: Clock) -> None:
    grant = await ledger.reserve(FREE, ASK)
    for _ in range(9):
        clock.now += 10
        await ledger.keep()
    assert await books(ledger, FREE) == (100, 0, 1, 0)
    assert await ledger.settle(grant, spent(5))


async def test_the_keeper_renews_by_itself(store: Flaky) -> None:
    clock = asyncio.get_running_loop().time
    async with Ledger(store, clock, lease=0.3) as ledger:
        await ledger.reserve(FREE, ASK)
        await asyncio.sleep(0.7)
        assert await books(ledger, FREE) == (100, 0, 1, 0)


@pytest.mark.parametrize("told", [None, 35])
async def test_a_dead_process_is_settled_by_the_living(tmp_path: Path, clock: Clock, told: int | None) -> None:
    dead = Ledger(SqliteStore(SqliteBooks(tmp_path / "b"), lag=0.0), clock)
    await dead.start()
    grant = await dead.reserve(LIMITED, ASK)
    if told is not None:
        dead.measure(grant, spent(told))
        await dead.keep()
    await dead.check()
    async with Ledger(SqliteStore(SqliteBooks(tmp_path / "b"), lag=0.0), clock) as living:
        await living.keep()
        assert await books(living, LIMITED) == (100, 0, 1, 0)
        clock.now += 30
        await living.keep()
        assert await books(living, LIMITED) == (0, 20 + (told or 0), 0, 1)
        assert await dead.settle(grant, spent(70))
        assert await books(living, LIMITED) == (0, 90, 0, 1)
        await living.check()
    await dead.close()


async def test_a_successor_settles_at_its_start(tmp_path: Path, clock: Clock) -> None:
    dead = Ledger(SqliteStore(SqliteBooks(tmp_path / "b"), lag=0.0), clock)
    await dead.reserve(LIMITED, ASK)
    await dead.close()
    clock.now += 31
    async with Ledger(SqliteStore(SqliteBooks(tmp_path / "b"), lag=0.0), clock) as living:
        assert await books(living, LIMITED) == (0, 20, 0, 1)


endings = st.sampled_from(["settle", "settle twice", "cancel reserve", "cancel settle", "fail settle"])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 200), st.integers(0, 60), endings), max_size=25),
)
def test_nothing_is_lost_nothing_is_doubled(requests: list[tuple[int, int, int, str]]) -> None:
    """Requests that end in every way, all at once: the books hold exactly what the settled ones spent."""

    async def request(ledger: Ledger, store: Flaky, n: tuple[int, int, int, str]) -> int:
        prompt, cap, used, ending = n
        ask = Ask(prompt_tokens=prompt, room=4000, default_max_tokens=cap)
        task: asyncio.Task[Grant] = asyncio.create_task(ledger.reserve(LIMITED, ask))
        if ending == "cancel reserve":
            await asyncio.sleep(0)
            task.cancel()
        try:
            grant = await task
        except (BudgetExceeded, asyncio.CancelledError):
            return 0
        calls: list[asyncio.Task[Any]] = []
        for _ in range(2 if ending == "settle twice" else 1):
            store.down = ending == "fail settle"
            calls.append(asyncio.create_task(ledger.settle(grant, spent(used, prompt))))
            await asyncio.sleep(0)
            store.down = False
            if ending == "cancel settle":
                calls[-1].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        return prompt + used

    async def run() -> None:
        store = Flaky(MemoryStore())
        async with Ledger(store, Clock()) as ledger:
            total = sum(await asyncio.gather(*(request(ledger, store, n) for n in requests)))
            await ledger.keep()
            reserved, used, opened, _ = await books(ledger, LIMITED)
            assert (reserved, used, opened) == (0, total, 0)
            await ledger.check()

    asyncio.run(run())
