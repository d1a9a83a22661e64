"""The thread that talks to a `BlockStore`, so that the engine's own never waits for a disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread

from .saved import BlockStore, Saved

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stored:
    """A `put` is over."""

    key: bytes
    kept: bool
    gone: tuple[bytes, ...] = ()
    """Blocks that had to go for it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A `get` is over."""

    key: bytes
    saved: Saved | None
    seconds: float


Report = Stored | Loaded


class Carrier:
    """Owns a store and the one thread that uses it. Orders are carried out in their order."""

    def __init__(self, store: BlockStore) -> None:
        self.keys = frozenset(store.keys())
        """What was there at the start."""
        self._store = store
        self._orders: SimpleQueue[Callable[[], Report | None] | None] = SimpleQueue()
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._thread = Thread(target=self._run, name="kv-carrier", daemon=True)
        self._thread.start()

    def put(self, key: bytes, saved: Saved) -> None:
        """Have a block kept; a `Stored` will say how it went."""
        self._orders.put(lambda: self._put(key, saved))

    def get(self, key: bytes) -> None:
        """Have a block fetched; a `Loaded` will bring it."""
        self._orders.put(lambda: self._get(key))

    def drop(self, key: bytes) -> None:
        """Have a block forgotten."""
        self._orders.put(lambda: self._store.drop(key))

    def reports(self) -> list[Report]:
        """What happened since the last call."""
        found = []
        while not self._reports.empty():
            found.append(self._reports.get())
        return found

    def close(self, patience: float) -> bool:
        """Carry out what was ordered, for `patience` seconds at most, and end the thread; whether all was done."""
        self._orders.put(None)
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                report = order()
            except Exception:
                # A report that never comes would keep a request waiting; each order answers for its own `OSError`s.
                log.exception("an order to the store of KV blocks failed")
                continue
            if report is not None:
                self._reports.put(report)
        self._store.close()

    def _put(self, key: bytes, saved: Saved) -> Report:
        try:
            return Stored(key, True, self._store.put(key, saved))
        except OSError as why:
            log.warning("a KV block could not be stored: %s", why)
            return Stored(key, False)

    def _get(self, key: bytes) -> Report:
        began = time.monotonic()
        try:
            saved = self._store.get(key)
        except OSError as why:
            log.warning("a KV block could not be fetched: %s", why)
            saved = None
        return Loaded(key, saved, time.monotonic() - began)
