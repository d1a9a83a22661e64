"""Slices keep every promise of a store for the process that has them, and never let a tenant spend beyond a limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergate.budget import Ask, BudgetExceeded, Ledger, NeverFits, Spent, StoreUnavailable, Tenant
from tiergate.budget.books import Account
from tiergate.budget.slices import GRANTS, Slices
from tiergate.budget.sqlite_books import SqliteBooks
from tiergate.budget.store import Hold, Lease, Refused, Window
from tiergate.budget.stores.memory import MemoryStore
from tiergate.budget.stores.sqlite import SqliteStore

DAY = "day:1"


class Counted(MemoryStore):
    """Counts what it is asked, and fails or waits when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.reserved: list[int] = []
        self.settled: list[int] = []
        self.down = False
        self.gate: asyncio.Event | None = None

    def account(self, tenant: str = "a") -> Account:
        return self._books.accounts[tenant, DAY]

    async def reserve(self, hold: Hold) -> Refused | None:
        self.reserved.append(hold.tokens)
        if self.gate is not None:
            await self.gate.wait()
        if self.down:
            raise StoreUnavailable("down")
        return await super().reserve(hold)

    async def settle(self, id: str, tokens: int) -> bool:
        if self.down:
            raise StoreUnavailable("down")
        self.settled.append(tokens)
        return await super().settle(id, tokens)


@pytest.fixture
async def store() -> AsyncIterator[Counted]:
    made = Counted()
    yield made
    await made.check()


def hold(id: str, tokens: int = 10, *, limit: int | None = None, **more: Any) -> Hold:
    window = Window(name="day", key=DAY, limit=limit, ends=86400.0)
    return replace(Hold(id=id, tenant="a", windows=(window,), tokens=tokens, measured=1, expires=30.0), **more)


async def numbers(slices: Slices) -> tuple[int, int, int, int]:
    await slices.check()
    balance = await slices.balance("a", DAY)
    assert balance.granted == balance.open_grants + balance.settled_grants
    return balance.reserved, balance.spent, balance.open_grants, balance.settled_grants


@pytest.mark.parametrize("limit", [None, 1_000_000])
async def test_many_grants_ask_the_store_once(store: Counted, limit: int | None) -> None:
    slices = Slices(store)
    for number in range(GRANTS):
        assert await slices.reserve(hold(f"{number}", limit=limit)) is None
    assert store.reserved == [10 * GRANTS]
    assert await numbers(slices) == (10 * GRANTS, 0, GRANTS, 0)
    for number in range(GRANTS):
        assert await slices.settle(f"{number}", 7)
        assert not await slices.settle(f"{number}", 7)
    assert await numbers(slices) == (0, 7 * GRANTS, 0, GRANTS)
    assert await slices.reserve(hold("more", 3 * GRANTS, limit=limit)) is None, "what came back can be granted again"
    assert len(store.reserved) == 1
    await slices.settle("more", 0)
    await slices.close()
    assert (store.account().reserved, store.account().spent) == (0, 7 * GRANTS)


async def test_near_a_limit_every_token_counts(store: Counted) -> None:
    slices = Slices(store)
    limit = 100
    for number in range(10):
        assert await slices.reserve(hold(f"{number}", limit=limit)) is None
    refused = await slices.reserve(hold("x", 1, limit=limit))
    assert refused == Refused(hold("x", limit=limit).windows[0], 100, 0)
    assert await slices.settle("0", 9)
    assert await slices.reserve(hold("x", 1, limit=limit)) is None
    assert await slices.reserve(hold("y", 1, limit=limit)) is not None


async def test_an_idle_slice_does_not_stand_in_the_way_of_what_fits_without_it(store: Counted) -> None:
    slices = Slices(store)
    limit = 640
    assert await slices.reserve(hold("a", 2, limit=limit)) is None
    assert store.reserved == [10]
    await slices.settle("a", 2)
    assert await slices.reserve(hold("b", 638, limit=limit)) is None
    assert await slices.reserve(hold("c", 1, limit=limit)) is not None


async def test_all_who_wait_for_a_slice_share_it_and_one_may_leave(store: Counted) -> None:
    slices = Slices(store)
    store.gate = asyncio.Event()
    waiting = [asyncio.create_task(slices.reserve(hold(f"{number}"))) for number in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    assert not await slices.settle("0", 0), "it was never made"
    store.gate.set()
    assert await asyncio.gather(*waiting[1:]) == [None] * 4
    assert store.reserved == [10 * GRANTS]
    assert await numbers(slices) == (40, 0, 4, 0)


async def test_a_store_that_is_away_refuses_slices_and_keeps_what_is_owed(store: Counted) -> None:
    slices = Slices(store)
    store.down = True
    with pytest.raises(StoreUnavailable):
        await slices.reserve(hold("a"))
    store.down = False
    await slices.reserve(hold("a"))
    await slices.reserve(hold("b", 10 * GRANTS))
    store.down = True
    assert await slices.settle("a", 4)
    await asyncio.sleep(0)
    assert (store.account().reserved, store.account().spent) == (10 + 640 * GRANTS, 0), "its rest went back before"
    store.down = False
    await slices.renew([Lease("b", 2, 60.0)])
    assert (store.account().reserved, store.account().spent) == (640 * GRANTS, 4)


async def test_slices_live_as_long_as_their_owner_says(store: Counted) -> None:
    slices = Slices(store)
    await slices.reserve(hold("a"))
    await slices.renew([Lease("a", 3, 60.0)])
    assert await slices.expire(59.0) == 0
    await slices.settle("a", 5)
    await slices.renew([Lease("elsewhere", 1, 90.0)])
    assert await slices.expire(89.0) == 0, "it was used since the last time"
    await slices.renew([Lease("elsewhere", 1, 120.0)])
    await asyncio.sleep(0)
    assert (store.account().reserved, store.account().spent) == (0, 5)


async def test_without_open_grants_slices_are_given_back(store: Counted) -> None:
    slices = Slices(store)
    await slices.reserve(hold("a"))
    await slices.settle("a", 5)
    await slices.renew([])
    await asyncio.sleep(0)
    assert (store.account().reserved, store.account().spent, store.account().open) == (0, 5, 0)


async def test_a_process_that_dies_is_charged_for_all_that_it_could_have_spent(store: Counted) -> None:
    dead = Slices(store)
    for number in range(3):
        await dead.reserve(hold(f"{number}"))
    await dead.settle("0", 10)
    other = Slices(store)
    assert await other.expire(30.0) == 1
    assert (store.account().reserved, store.account().spent) == (0, 10 * GRANTS)
    assert await dead.settle("1", 1)
    assert await dead.settle("2", 2)
    await dead.close()
    assert store.account().spent == 13, "it was not dead after all, and what it says counts"


async def test_grants_open_at_the_close_are_settled_at_their_measure(store: Counted) -> None:
    slices = Slices(store)
    await slices.reserve(hold("a"))
    await slices.reserve(hold("b"))
    await slices.renew([Lease("a", 6, 60.0), Lease("b", 1, 60.0)])
    await slices.close()
    assert (store.account().reserved, store.account().spent) == (0, 7)


async def test_long_answers_keep_nothing_from_others_that_they_do_not_need(store: Counted) -> None:
    # Every third one begins a slice, and its predecessor's rest is too small for any: a third of the limit in all.
    slices = Slices(store)
    limit, tokens = 640_000, 3_400
    granted = 0
    while await slices.reserve(hold(f"{granted}", tokens, limit=limit)) is None:
        granted += 1
    assert granted == limit // tokens
    other = Slices(store)
    assert await other.reserve(hold("other", limit - granted * tokens, limit=limit)) is None


async def test_others_get_what_a_replaced_slice_did_not_need(store: Counted) -> None:
    slices = Slices(store)
    await slices.reserve(hold("a", 1))
    await slices.reserve(hold("b", GRANTS))
    await asyncio.sleep(0)
    assert store.account().reserved == 1 + GRANTS * GRANTS
    await slices.reserve(hold("c", GRANTS * GRANTS))
    await slices.settle("c", 0)
    await slices.settle("b", 2)
    await slices.renew([Lease("a", 0, 60.0), Lease("b", 0, 60.0)])
    assert await numbers(slices) == (1, 2, 1, 2)


async def test_many_that_are_refused_at_once_share_what_is_given_back(store: Counted) -> None:
    class Slow(Counted):
        async def reserve(self, hold: Hold) -> Refused | None:
            answer = await super().reserve(hold)
            await asyncio.sleep(0)
            return answer

    slices = Slices(Slow())
    limit = 640
    assert await slices.reserve(hold("a", 1, limit=limit)) is None
    wanted = [slices.reserve(hold(f"{number}", 213, limit=limit)) for number in range(3)]
    assert await asyncio.gather(*wanted) == [None] * 3
    await slices.check()


async def test_a_grant_that_spent_more_than_it_had(store: Counted) -> None:
    slices = Slices(store)
    await slices.reserve(hold("a", 10, limit=640))
    await slices.settle("a", 14)
    await slices.reserve(hold("b", 5, limit=640))
    await slices.renew([Lease("b", 5, 60.0)])
    await slices.settle("b", 5)
    await slices.close()
    assert (store.account().reserved, store.account().spent) == (0, 19)


def idle(slices: Slices) -> int:
    """Tokens that a process keeps from others: of its latest slice, and what older ones' grants gave back."""
    return sum(max(one.left, 0) for one in (*slices._current.values(), *slices._retired))


actions = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(0, 5), st.integers(1, 60), st.sampled_from(["reserve", "settle", "renew"])
    ),
    max_size=40,
)


@given(actions=actions, limit=st.sampled_from([50, 1000, 20_000]))
@settings(max_examples=150)
def test_two_processes_never_grant_more_than_the_limit(actions: list[tuple[int, int, int, str]], limit: int) -> None:
    async def play() -> None:
        store = Counted()
        both = Slices(store), Slices(store)
        granted: dict[str, tuple[int, int]] = {}
        spent = count = 0
        for place, which, tokens, what in actions:
            slices = both[place]
            mine = sorted(id for id, (owner, _) in granted.items() if owner == place)
            if what == "reserve":
                count += 1
                if await slices.reserve(hold(f"{place}-{count}", tokens, limit=limit)) is None:
                    granted[f"{place}-{count}"] = (place, tokens)
                else:
                    held = spent + sum(size for _, size in granted.values())
                    assert held + tokens > limit - idle(both[1 - place])
            elif what == "settle" and mine:
                id = mine[which % len(mine)]
                used = min(tokens, granted.pop(id)[1])
                spent += used
                assert await slices.settle(id, used)
            elif what == "renew":
                await slices.renew([Lease(id, 1, 60.0) for id in mine])
            assert spent + sum(size for _, size in granted.values()) <= limit
            await slices.check()
        for id, (place, _) in granted.items():
            await both[place].settle(id, 0)
        for slices in both:
            await slices.close()
        if count:
            account = store.account() if ("a", DAY) in store._books.accounts else Account()
            assert (account.reserved, account.spent, account.open) == (0, spent, 0)

    asyncio.run(play())


async def test_two_ledgers_on_one_file(tmp_path: Path) -> None:
    tenant = Tenant(id="a", day_tokens=6400)
    ask = Ask(prompt_tokens=10, max_tokens=10, room=100, default_max_tokens=10)
    one, two = (Ledger(SqliteStore(SqliteBooks(tmp_path / "books"), lag=0.0), sliced=True) for _ in range(2))
    await one.start()
    await two.start()
    grants = []
    for number in range(1000):
        ledger = one if number % 2 else two
        try:
            grants.append((ledger, await ledger.reserve(tenant, ask)))
        except BudgetExceeded:
            break
    assert 300 <= len(grants) <= 320
    for ledger, grant in grants:
        assert await ledger.settle(grant, Spent(prompt_tokens=10, completion_tokens=5))
    with pytest.raises(NeverFits):
        await one.reserve(tenant, replace(ask, prompt_tokens=6400))
    await one.close()
    spent = (await two.balance(tenant)).spent
    assert spent == 15 * len(grants)
    await two.check()
    await two.close()
