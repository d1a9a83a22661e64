"""Reserve before a request runs, settle after it, exactly once whatever happens in between."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from functools import lru_cache
from types import TracebackType

from . import policies
from .errors import BudgetExceeded, NeverFits, StoreUnavailable
from .extensions import load
from .policies import Decide
from .slices import Slices
from .store import Hold, Lease, Refused, Store, Window
from .types import Ask, Balance, Grant, Spent, Tenant

DAY = 86400
SHORT_WAIT = 1.0
"""Seconds to wait when a window is full of reservations, which other requests will soon give back."""

log = logging.getLogger(__name__)


class Ledger:
    """Grants of one process; owns its store. Start it, or use it as an async context manager.

    Each open grant has a lease that is renewed while this process lives, together with what `measure` last said of it.
    When a process dies, the ledger of any other one on the same store, or its own successor, settles its open grants at
    that measure as the leases end. Before the first word on a grant its measure is the prompt.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float] = time.time,
        *,
        lease: float = 30.0,
        name: str = "",
        sliced: bool = False,
    ) -> None:
        """`clock` gives unix time, `lease` is in seconds, `name` begins the ids of grants and is unique if given.

        `sliced`: ask the store for the tokens of many grants at once. When this process dies, those that it had are
        charged whole.
        """
        self._store = Slices(store) if sliced else store
        self._clock = clock
        self._lease = lease
        self._name = name or uuid.uuid4().hex
        self._count = 0
        self._policies: dict[str, Decide] = {}
        self._open: dict[str, int] = {}
        self._owed: dict[str, int] = {}
        self._paying: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Ledger:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Settle what dead processes left behind and begin to keep the leases. Raises `StoreUnavailable`."""
        await self._store.expire(self._clock())
        self._keeper = asyncio.create_task(self._keep(), name="budget-leases")

    async def close(self) -> None:
        """Hand over what is owed and close the store. Grants still open are settled by others when their leases end."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        await asyncio.gather(*self._paying)
        await self._pay()
        await self._store.close()

    async def reserve(self, tenant: Tenant, ask: Ask) -> Grant:
        """Permission to spend, held in the books until it is settled.

        Raises `NeverFits` (no window could ever hold it), `BudgetExceeded` (not now), `StoreUnavailable`. When the
        caller is cancelled here, the reservation is given back.
        """
        limits = self._decide(tenant.policy)(tenant, ask)
        tokens = (ask.prompt_tokens + limits.max_tokens * ask.choices) * ask.attempts
        now = self._clock()
        window = day_window(tenant, now)
        if window.limit is not None and tokens > window.limit:
            raise NeverFits(scope=f"tenant {tenant.id}", window=window.name, limit=window.limit, asked=tokens)
        self._count += 1
        id = f"{self._name}-{self._count}"
        hold = Hold(
            id=id,
            tenant=tenant.id,
            windows=(window,),
            tokens=tokens,
            measured=ask.prompt_tokens,
            expires=now + self._lease,
        )
        try:
            refused = await self._store.reserve(hold)
        except asyncio.CancelledError:
            self._owed[id] = 0
            task = asyncio.create_task(self._pay())
            self._paying.add(task)
            task.add_done_callback(self._paying.discard)
            raise
        if refused is not None:
            raise _exceeded(tenant, refused, tokens, now)
        self._open[id] = ask.prompt_tokens
        return Grant(id=id, tenant=tenant.id, limits=limits, reserved=tokens)

    def measure(self, grant: Grant, spent: Spent) -> None:
        """What an open grant has spent so far, written down at the next renewal of its lease. Cheap; never waits."""
        if grant.id in self._open:
            self._open[grant.id] = spent.total

    async def settle(self, grant: Grant, spent: Spent) -> bool:
        """Put down what was really spent and give back the rest; call it in every ending of a request.

        True only for the call that settled the grant; further calls change nothing. Safe under cancellation, and never
        raises `StoreUnavailable`: the settlement is kept then, and tried again until the store takes it (False is
        returned).
        The call waits some milliseconds for the store, so make it after the last byte of an answer has left.
        """
        if self._open.pop(grant.id, None) is None:
            return False
        self._owed[grant.id] = spent.total
        try:
            did = await self._store.settle(grant.id, spent.total)
        except StoreUnavailable as error:
            log.warning("settlement of %d tokens is kept for later: %s", spent.total, error)
            return False
        self._owed.pop(grant.id, None)
        return did

    async def balance(self, tenant: Tenant) -> Balance:
        """The tenant's books of today. Raises `StoreUnavailable`."""
        return await self._store.balance(tenant.id, day_window(tenant, self._clock()).key)

    async def check(self) -> None:
        """Verify all books in the store. Raises `AssertionError`, `StoreUnavailable`."""
        await self._store.check()

    async def keep(self) -> None:
        """One round of housekeeping: what is owed is paid, leases renewed, dead processes' grants settled.

        Raises `StoreUnavailable`.
        """
        await self._pay()
        now = self._clock()
        expires = now + self._lease
        await self._store.renew([Lease(id, measured, expires) for id, measured in self._open.items()])
        count = await self._store.expire(now)
        if count:
            log.warning("settled %d grants whose leases had ended", count)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            try:
                await self.keep()
            except StoreUnavailable as error:
                log.warning("leases were not renewed: %s", error)

    async def _pay(self) -> None:
        owed = list(self._owed.items())
        answers = await asyncio.gather(*(self._store.settle(id, tokens) for id, tokens in owed), return_exceptions=True)
        for (id, _), answer in zip(owed, answers, strict=True):
            if isinstance(answer, StoreUnavailable):
                log.warning("%s is still owed its settlement: %s", id, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                self._owed.pop(id, None)

    def _decide(self, policy: str) -> Decide:
        decide = self._policies.get(policy)
        if decide is None:
            found: Decide = load(policies, policy, "policy").decide
            decide = self._policies[policy] = found
        return decide


def day_window(tenant: Tenant, now: float) -> Window:
    """The UTC day that `now`, unix time, falls in, with the tenant's limit."""
    day = int(now // DAY)
    return Window(name="day", key=_day_key(day), limit=tenant.day_tokens, ends=float((day + 1) * DAY))


@lru_cache(8)
def _day_key(day: int) -> str:
    """The name of a UTC day by its number since 1970."""
    date = time.gmtime(day * DAY)
    return f"day:{date.tm_year:04}-{date.tm_mon:02}-{date.tm_mday:02}"


def _exceeded(tenant: Tenant, refused: Refused, asked: int, now: float) -> BudgetExceeded:
    window = refused.window
    assert window.limit is not None
    full = refused.spent + asked > window.limit
    return BudgetExceeded(
        scope=f"tenant {tenant.id}",
        window=window.name,
        limit=window.limit,
        used=refused.reserved + refused.spent,
        asked=asked,
        retry_after=window.ends - now if full else SHORT_WAIT,
    )
