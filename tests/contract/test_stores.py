"""One suite for every store of the books."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from tiergate.budget.sqlite_books import SqliteBooks
from tiergate.budget.store import Hold, Lease, Refused, Store, Window
from tiergate.budget.stores.memory import MemoryStore
from tiergate.budget.stores.sqlite import SqliteStore
from tiergate.budget.types import Balance

Opener = Callable[[Path], Store]


def open_memory(folder: Path) -> Store:
    return MemoryStore()


def open_sqlite(folder: Path) -> Store:
    return SqliteStore(SqliteBooks(folder / "books"), lag=0.0)


STORES: dict[str, Opener] = {"memory": open_memory, "sqlite": open_sqlite}
every_store = pytest.mark.parametrize("open", STORES.values(), ids=STORES.keys())


def hold(id: str, tokens: int, *, limit: int | None = None, day: str = "1", **more: Any) -> Hold:
    window = Window(name="day", key=f"day:{day}", limit=limit, ends=86400.0)
    plain = Hold(id=id, tenant="a", windows=(window,), tokens=tokens, measured=0, expires=30.0)
    return replace(plain, **more)


@pytest_asyncio.fixture(params=STORES.values(), ids=STORES.keys())
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store = request.param(tmp_path)
    yield opened
    await opened.check()
    await opened.close()


async def numbers(store: Store, tenant: str = "a", window: str = "day:1") -> tuple[int, int, int, int]:
    balance = await store.balance(tenant, window)
    assert balance.granted == balance.open_grants + balance.settled_grants
    return balance.reserved, balance.spent, balance.open_grants, balance.settled_grants


async def test_what_was_never_used_is_zero(store: Store) -> None:
    zeros = {"reserved": 0, "spent": 0, "open_grants": 0, "settled_grants": 0, "granted": 0}
    assert await store.balance("a", "day:1") == Balance(tenant="a", window="day:1", **zeros)
    assert not await store.settle("nothing", 5)
    await store.renew([Lease("nothing", 1, 99.0)])
    assert await store.expire(1e12) == 0
    assert await numbers(store) == (0, 0, 0, 0)


@pytest.mark.parametrize("limit", [None, 1000])
async def test_reserve_then_settle_once(store: Store, limit: int | None) -> None:
    assert await store.reserve(hold("x", 100, limit=limit)) is None
    assert await numbers(store) == (100, 0, 1, 0)
    assert await store.settle("x", 60)
    assert await numbers(store) == (0, 60, 0, 1)
    assert not await store.settle("x", 60)
    assert not await store.settle("x", 0)
    assert await numbers(store) == (0, 60, 0, 1)


async def test_what_was_really_spent_counts_even_beyond_the_reservation(store: Store) -> None:
    await store.reserve(hold("x", 10, limit=100))
    assert await store.settle("x", 150)
    assert await store.reserve(hold("y", 1, limit=100)) == Refused(hold("y", 1, limit=100).windows[0], 0, 150)


async def test_a_limit_counts_what_is_reserved_and_what_is_spent(store: Store) -> None:
    assert await store.reserve(hold("x", 60, limit=100)) is None
    refused = await store.reserve(hold("y", 41, limit=100))
    assert refused == Refused(hold("y", 41, limit=100).windows[0], 60, 0)
    assert await store.reserve(hold("z", 40, limit=100)) is None
    await store.settle("x", 10)
    assert await store.reserve(hold("w", 50, limit=100)) is None
    assert await numbers(store) == (90, 10, 2, 1)


async def test_several_windows_are_all_or_nothing(store: Store) -> None:
    hour = Window(name="hour", key="hour:7", limit=50, ends=3600.0)
    day = Window(name="day", key="day:1", limit=100, ends=86400.0)
    assert await store.reserve(hold("x", 40, windows=(day, hour))) is None
    assert await store.reserve(hold("y", 40, windows=(day, hour))) == Refused(hour, 40, 0)
    assert await numbers(store) == (40, 0, 1, 0)
    assert await store.settle("x", 30)
    assert await numbers(store, window="hour:7") == await numbers(store, window="day:1") == (0, 30, 0, 1)


async def test_a_grant_is_settled_in_the_window_it_was_made_in(store: Store) -> None:
    await store.reserve(hold("x", 10, day="1"))
    await store.reserve(hold("y", 20, day="2"))
    await store.settle("x", 7)
    assert await numbers(store, window="day:1") == (0, 7, 0, 1)
    assert await numbers(store, window="day:2") == (20, 0, 1, 0)


async def test_tenants_have_books_of_their_own(store: Store) -> None:
    await store.reserve(hold("x", 90, limit=100, tenant="a"))
    assert await store.reserve(hold("y", 90, limit=100, tenant="b")) is None
    await store.settle("y", 5)
    assert await numbers(store, tenant="a") == (90, 0, 1, 0)
    assert await numbers(store, tenant="b") == (0, 5, 0, 1)


async def test_an_ended_lease_is_settled_at_its_measure(store: Store) -> None:
    await store.reserve(hold("x", 100, measured=7, expires=30.0))
    await store.reserve(hold("y", 100, measured=7, expires=30.0))
    await store.renew([Lease("y", 25, 60.0)])
    assert await store.expire(29.9) == 0
    assert await store.expire(30.0) == 1
    assert await numbers(store) == (100, 7, 1, 1)
    await store.renew([Lease("y", 20, 50.0)])
    assert await store.expire(59.0) == 0
    assert await store.expire(60.0) == 1
    assert await store.expire(60.0) == 0
    assert await numbers(store) == (0, 32, 0, 2)


async def test_what_is_not_needed_any_more_is_given_back_in_all_windows(store: Store) -> None:
    hour = Window(name="hour", key="hour:7", limit=100, ends=3600.0)
    day = Window(name="day", key="day:1", limit=100, ends=86400.0)
    await store.reserve(hold("x", 90, windows=(day, hour), measured=90))
    await store.renew([Lease("x", 0, 0.0, 40)])
    assert await numbers(store, window="hour:7") == await numbers(store) == (40, 0, 1, 0)
    await store.renew([Lease("x", 95, 0.0, 80), Lease("x", 0, 0.0)])
    assert await numbers(store) == (40, 0, 1, 0), "it only shrinks"
    assert await store.reserve(hold("y", 60, windows=(day, hour))) is None
    assert await store.expire(30.0) == 2
    assert await numbers(store) == (0, 95, 0, 2), "measured after it had shrunk"
    await store.renew([Lease("x", 0, 90.0, 10)])
    assert await store.settle("x", 30)
    assert await numbers(store) == (0, 30, 0, 2)


async def test_nothing_is_measured_that_was_given_back(store: Store) -> None:
    await store.reserve(hold("x", 90, measured=90))
    await store.renew([Lease("x", 0, 0.0, 40)])
    await store.expire(30.0)
    assert await numbers(store) == (0, 40, 0, 1)


@pytest.mark.parametrize("true", [0, 7, 90])
async def test_who_was_only_thought_dead_may_correct_it_once(store: Store, true: int) -> None:
    await store.reserve(hold("x", 100, measured=7))
    await store.expire(30.0)
    await store.renew([Lease("x", 50, 90.0)])
    assert await numbers(store) == (0, 7, 0, 1)
    assert await store.settle("x", true)
    assert not await store.settle("x", true)
    assert await numbers(store) == (0, true, 0, 1)


async def test_a_correction_does_not_come_after_weeks(store: Store) -> None:
    await store.reserve(hold("x", 100, measured=7))
    await store.expire(30.0)
    assert await store.expire(30.0 + 30 * 86400) == 0
    assert not await store.settle("x", 90)
    assert await numbers(store) == (0, 7, 0, 1)


async def test_concurrent_reserves_never_pass_the_limit(store: Store) -> None:
    seen: list[int] = []

    async def one(n: int) -> bool:
        refused = await store.reserve(hold(str(n), 10, limit=105))
        balance = await store.balance("a", "day:1")
        seen.append(balance.reserved + balance.spent)
        if refused is None:
            assert await store.settle(str(n), 9)
        return refused is None

    admitted = sum(await asyncio.gather(*(one(n) for n in range(200))))
    assert max(seen) <= 105
    assert 10 <= admitted <= 11
    assert await numbers(store) == (0, 9 * admitted, 0, admitted)


async def test_a_change_is_made_though_its_caller_stops_waiting(store: Store) -> None:
    async def cut(call: Awaitable[object]) -> None:
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    await store.reserve(hold("x", 100))
    await cut(store.settle("x", 30))
    assert await numbers(store) == (0, 30, 0, 1)
    await cut(store.reserve(hold("y", 100, limit=1000)))
    assert await store.settle("y", 0)
    assert await numbers(store) == (0, 30, 0, 2)


async def test_words_of_any_script(store: Store) -> None:
    await store.reserve(hold("größe'\"; --", 10, tenant="名前"))
    assert await numbers(store, tenant="名前") == (10, 0, 1, 0)
    assert await store.settle("größe'\"; --", 4)


amounts = st.integers(0, 60)


class Bookkeeping(RuleBasedStateMachine):
    """Any order of calls, against the simplest model of them: a dict of grants."""

    open: Opener
    grants = Bundle("grants")

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.store: Any = None
        self.now = 0.0
        self.made: dict[str, Hold] = {}
        self.live: dict[str, tuple[int, float]] = {}
        self.held: dict[str, int] = {}
        self.expired: dict[str, int] = {}
        self.spent: dict[str, int] = {}

    def run(self, call: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await call

        return self.runner.run(wait())

    @initialize()
    def start(self) -> None:
        async def opened() -> Store:
            return type(self).open(Path(self.folder.name))

        self.store = self.run(opened())

    @rule(
        target=grants, tokens=amounts, measured=amounts, limit=st.none() | st.just(150), day=st.sampled_from("12"),
        lease=st.integers(1, 5),
    )  # fmt: skip
    def reserve(self, tokens: int, measured: int, limit: int | None, day: str, lease: int) -> str:
        id = f"g{len(self.made)}"
        made = hold(id, tokens, limit=limit, day=day, measured=measured, expires=self.now + lease)
        self.made[id] = made
        used = self.reserved(day) + self.total(day)
        refused = self.run(self.store.reserve(made))
        assert (refused is not None) == (limit is not None and used + tokens > limit)
        if refused is None:
            self.live[id] = (measured, self.now + lease)
            self.held[id] = tokens
        else:
            assert refused.reserved + refused.spent == used
        return id

    @rule(id=grants, tokens=amounts)
    def settle(self, id: str, tokens: int) -> None:
        did = self.run(self.store.settle(id, tokens))
        assert did == (id in self.live or id in self.expired)
        if did:
            self.spent[id] = tokens
            self.live.pop(id, None)
            self.expired.pop(id, None)

    @rule(id=grants, measured=amounts, lease=st.integers(1, 5), tokens=st.none() | amounts)
    def renew(self, id: str, measured: int, lease: int, tokens: int | None) -> None:
        self.run(self.store.renew([Lease(id, measured, self.now + lease, tokens)]))
        if id in self.live:
            before, expires = self.live[id]
            measured = max(before, measured)
            if tokens is not None and tokens < self.held[id]:
                self.held[id] = tokens
                measured = min(measured, tokens)
            self.live[id] = (measured, max(expires, self.now + lease))

    @rule(seconds=st.integers(0, 3))
    def expire(self, seconds: int) -> None:
        self.now += seconds
        due = {id: measured for id, (measured, expires) in self.live.items() if expires <= self.now}
        assert self.run(self.store.expire(self.now)) == len(due)
        for id, measured in due.items():
            del self.live[id]
            self.expired[id] = self.spent[id] = measured

    def reserved(self, day: str) -> int:
        return sum(self.held[id] for id in self.live if self.made[id].windows[0].key == f"day:{day}")

    def total(self, day: str) -> int:
        return sum(n for id, n in self.spent.items() if self.made[id].windows[0].key == f"day:{day}")

    @invariant()
    def books_agree(self) -> None:
        if self.store is None:
            return
        self.run(self.store.check())
        for day in "12":
            ids = [id for id, made in self.made.items() if made.windows[0].key == f"day:{day}"]
            assert self.run(numbers(self.store, window=f"day:{day}")) == (
                self.reserved(day),
                self.total(day),
                sum(id in self.live for id in ids),
                sum(id in self.spent for id in ids),
            )

    def teardown(self) -> None:
        if self.store is not None:
            self.run(self.store.close())
        self.runner.close()
        self.folder.cleanup()


@every_store
def test_any_order_of_calls(open: Opener) -> None:
    machine: Any = type("Machine", (Bookkeeping,), {"open": staticmethod(open)})
    examples = 60 if open is open_memory else 15
    machine.TestCase.settings = settings(max_examples=examples, stateful_step_count=25, deadline=None)
    machine.TestCase().runTest()


def test_every_store_of_the_room_is_under_contract() -> None:
    folder = Path(__file__).parent.parent.parent / "budget" / "stores"
    assert {file.stem for file in folder.glob("*.py")} - {"__init__"} == STORES.keys()
