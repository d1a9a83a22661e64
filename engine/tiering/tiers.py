"""Prefix-cache blocks beyond the pool: taken in as the pool evicts them, put back when a request needs them.

The engine's thread owns everything here but the store, which its `Carrier` works. A block goes to host memory when it
is evicted, to the store when host memory is full, and back by being adopted into the pool as if it had just been
computed; so a plan sees longer prefixes in the cache, and nothing else. Keys are the pool's digests of whole chains:
root (salt, model, policy) and all tokens; tokens and parent are compared besides.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..block_pool import BlockPool, Chain, Content, Hit
from .carrier import Carrier, Loaded
from .host import HostShelf
from .saved import BlockMemory, BlockStore, Saved
from .worth import DISK, HOST, Rate, places

IN_FLIGHT = 64 << 20
"""Bytes on their way to the store; what is evicted while so much is waiting is lost."""
FAREWELL = 2.0
"""Seconds that the end of the process may take for what is still to be stored."""
PATIENCE = 4.0
"""A request waits for its blocks so many times as long as the store was predicted to take."""


@dataclass(slots=True)
class TierCounts:
    """Blocks since the start."""

    kept: int = 0
    """Taken in."""
    restored: int = 0
    """Put back."""
    lost: int = 0
    """Refused, displaced, or found damaged."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Blocks that a waiting request has sent for."""

    keys: frozenset[bytes]
    until: float


@dataclass(slots=True)
class KvTiers:
    """A `Spill` of the pool. `compute(number, tokens)` predicts the seconds of computing a block of so many tokens
    behind `number` others, None where nobody knows yet; `clock` is in seconds."""

    memory: BlockMemory
    host_bytes: int
    store: BlockStore | None
    compute: Callable[[int, int], float | None]
    clock: Callable[[], float]
    counts: TierCounts = field(default_factory=TierCounts)
    _shelf: HostShelf = field(init=False)
    _carrier: Carrier | None = field(init=False)
    _stored: set[bytes] = field(init=False)
    _leaving: dict[bytes, Saved] = field(default_factory=dict)
    """On their way to the store; still to be had."""
    _coming: set[bytes] = field(default_factory=set)
    _landed: dict[bytes, Saved] = field(default_factory=dict)
    """Fetched from the store for requests that wait; on top of the budget of host memory."""
    _waits: dict[int, _Wanted] = field(default_factory=dict)
    """By request."""
    _host_rate: Rate = HOST
    _disk_rate: Rate = DISK

    def __post_init__(self) -> None:
        self._shelf = HostShelf(self.host_bytes)
        self._carrier = Carrier(self.store) if self.store is not None else None
        self._stored = set(self._carrier.keys) if self._carrier else set()

    @property
    def host_blocks(self) -> int:
        return len(self._shelf)

    @property
    def stored_blocks(self) -> int:
        return len(self._stored)

    def evicted(self, block: int, content: Content) -> None:
        """See `Spill`."""
        size = self.memory.kv_block_bytes
        compute = self.compute(content.number, len(content.ids) // 8)
        worth = places(size, float("inf") if compute is None else compute, self._host_rate, self._disk_rate)
        to_store = self._carrier is not None and worth.disk
        if content.digest in self._stored and not (worth.host and self.host_bytes):
            return
        if not (worth.host and self.host_bytes >= size) and not to_store:
            return
        saved = Saved(content.parent, content.ids, self.memory.read_block(block))
        self.counts.kept += 1
        if worth.host and self.host_bytes >= size:
            self._shelve(content.digest, saved)
        else:
            self._send(content.digest, saved)

    def forgotten(self, digest: bytes) -> None:
        """See `Spill`."""
        self._shelf.take(digest)
        self._landed.pop(digest, None)
        self._leaving.pop(digest, None)
        if self._carrier and digest in self._stored:
            self._stored.discard(digest)
            self._carrier.drop(digest)

    def fetch(self, request: int, pool: BlockPool, chain: Chain, ids: array[int]) -> bool:
        """Put blocks of `ids` back into `pool`, as far as there is room; whether others are worth waiting for.

        Call it before a plan, for requests that may begin in it: it evicts, so hits found before are void. The answer
        turns false by itself after a while.
        """
        self._collect()
        limit = len(ids) - 1
        hit = pool.find(chain, ids, limit)
        ready: list[tuple[Content, Saved]] = []
        absent: list[bytes] = []
        for number in range(len(hit.blocks), limit // pool.block_size):
            content = pool.content(chain, ids, number)
            key = content.digest
            if pool.has(key):
                break
            saved = self._here(key)
            if saved is None and key not in self._stored:
                break
            if saved is None:
                absent.append(key)
            elif absent:  # its turn comes when those before it are here
                continue
            elif saved.ids == content.ids and saved.parent == content.parent:
                ready.append((content, saved))
            else:
                self.forgotten(key)
                break
        del ready[max(0, pool.available - hit.idle) :]
        if ready:
            self._restore(pool, chain, hit, ready)
        if absent:
            return self._wait(request, absent)
        self.leave(request)
        return False

    def leave(self, request: int) -> None:
        """A request does not wait any more."""
        wait = self._waits.pop(request, None)
        if wait is None:
            return
        others = {key for other in self._waits.values() for key in other.keys}
        for key in wait.keys - others:
            if saved := self._landed.pop(key, None):
                self._shelve(key, saved)

    def close(self, idle: Sequence[tuple[int, Content]]) -> None:
        """Store what is in host memory, and the pool's `idle` blocks, as far as time allows; the end of it all."""
        if self._carrier is None:
            return
        for key, saved in self._shelf.empty():
            self._order(key, saved)
        for block, content in idle:
            if content.digest not in self._stored:
                self._order(content.digest, Saved(content.parent, content.ids, self.memory.read_block(block)))
        self._carrier.close(FAREWELL)

    def _here(self, key: bytes) -> Saved | None:
        found = self._leaving.get(key) or self._landed.get(key)
        if found is None and key in self._shelf:
            found = self._shelf.take(key)
            assert found is not None
            self._shelf.put(key, found)  # the latest used, now
        return found

    def _restore(self, pool: BlockPool, chain: Chain, hit: Hit, ready: list[tuple[Content, Saved]]) -> None:
        """What is restored leaves host memory: it comes back there when it is evicted again."""
        for content, _ in ready:
            self._shelf.take(content.digest)
            self._landed.pop(content.digest, None)
        held = pool.adopt(chain, hit, [content for content, _ in ready])
        began = self.clock()
        for block, (_, saved) in zip(held[len(hit.blocks) :], ready, strict=True):
            self.memory.write_block(block, saved.data)
        size = sum(len(saved.data) for _, saved in ready)
        self._host_rate = self._host_rate.seen(size, self.clock() - began)
        pool.release(held)
        self.counts.restored += len(ready)

    def _wait(self, request: int, keys: list[bytes]) -> bool:
        """Send for `keys` once; whether `request` should wait for them."""
        assert self._carrier is not None
        now = self.clock()
        if request not in self._waits:
            size = self.memory.kv_block_bytes
            patience = PATIENCE * self._disk_rate.seconds(size) * (len(keys) + len(self._coming)) + 0.01
            self._waits[request] = _Wanted(frozenset(keys), now + patience)
            for key in keys:
                if key not in self._coming and key in self._stored:
                    self._coming.add(key)
                    self._carrier.get(key)
        wanted = self._waits[request]
        return now < wanted.until and not wanted.keys.isdisjoint(self._coming)

    def _collect(self) -> None:
        for report in self._carrier.reports() if self._carrier else ():
            if isinstance(report, Loaded):
                self._arrive(report)
                continue
            self._leaving.pop(report.key, None)
            self._stored.difference_update(report.gone)
            self.counts.lost += len(report.gone) + (not report.kept)
            if report.kept:
                self._stored.add(report.key)

    def _arrive(self, report: Loaded) -> None:
        self._coming.discard(report.key)
        if report.saved is None:
            self._stored.discard(report.key)
            self.counts.lost += 1
            return
        self._disk_rate = self._disk_rate.seen(len(report.saved.data), report.seconds)
        if report.key not in self._stored:  # forgotten meanwhile
            return
        if any(report.key in wait.keys for wait in self._waits.values()):
            self._landed[report.key] = report.saved
        else:
            self._shelve(report.key, report.saved)

    def _shelve(self, key: bytes, saved: Saved) -> None:
        for each, old in self._shelf.put(key, saved):
            self._send(each, old)

    def _send(self, key: bytes, saved: Saved) -> None:
        """Towards the store, if there is one and it is not there yet."""
        if key in self._stored:
            return
        on_the_way = len(self._leaving) * self.memory.kv_block_bytes
        if self._carrier is None or on_the_way >= IN_FLIGHT:
            self.counts.lost += 1
            return
        self._order(key, saved)

    def _order(self, key: bytes, saved: Saved) -> None:
        assert self._carrier is not None
        if key not in self._stored and key not in self._leaving:
            self._leaving[key] = saved
            self._carrier.put(key, saved)
