"""Owns the waiting and running sequences of a lane, and carries out what `schedule` decides."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .block_pool import BlockPool, Hit
from .schedule import Running, SchedulerView, StepPlan, Waiting, schedule
from .sequence import Sequence

LOOKAHEAD = 16
"""Waiting sequences that a plan considers: more could rarely start in one step, and each costs a cache look-up."""


class Work(NamedTuple):
    """Compute `length` tokens of `sequence` from `start` on; its blocks are there."""

    sequence: Sequence
    start: int
    length: int

    @property
    def wants_logits(self) -> bool:
        """Whether this closes the gap, so that a token can be chosen."""
        return self.start + self.length == len(self.sequence.ids)


@dataclass(frozen=True, slots=True)
class Step:
    work: tuple[Work, ...]
    impossible: tuple[Sequence, ...] = ()
    """Can never fit; still here, for the caller to fail and remove."""


class Scheduler:
    """State changes only by `add`, `remove`, `begin` and `advance`."""

    def __init__(self, pool: BlockPool, *, budget: int, max_running: int, max_waiting: int, max_blocks: int) -> None:
        """`max_blocks` is the most a sequence may hold: the width of the tables."""
        self.pool = pool
        self.tables: npt.NDArray[np.int32] = np.zeros((min(max_running, budget), max_blocks), np.int32)
        """[rows, max_blocks] block ids of running sequences, 0 beyond what they hold."""
        self.preemptions = 0
        self.cached_tokens = 0
        """Prompt tokens found in the prefix cache, each sequence's first time."""
        self._budget = budget
        self._max_waiting = max_waiting
        self._free_rows = list(range(len(self.tables) - 1, -1, -1))
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._by_order: dict[int, Sequence] = {}

    def __iter__(self) -> Iterator[Sequence]:
        return iter(tuple(self._by_order.values()))

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def full(self) -> bool:
        """Whether another sequence would have to wait behind too many."""
        return len(self._waiting) >= self._max_waiting

    @property
    def gap(self) -> int:
        """Tokens that running sequences lack, and the tokens that wait, at most as many as a step can take."""
        total = 0
        for sequence in (*self._running, *self._waiting[:LOOKAHEAD]):
            total += len(sequence.ids) - sequence.computed
            if total >= self._budget:
                return self._budget
        return total

    @property
    def oldest_waiting(self) -> float | None:
        """When the first in the queue arrived, seconds."""
        return self._waiting[0].arrived if self._waiting else None

    def add(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=_rank)
        self._by_order[sequence.order] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence in whatever state; its blocks are given up."""
        if self._by_order.pop(sequence.order, None) is None:
            return
        if sequence.status == "running":
            self._leave(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.status = "done"

    def distrust(self, sequence: Sequence) -> None:
        """Keep what this sequence computed or built upon from being reused by others."""
        self.pool.forget(sequence.blocks)

    def begin(self) -> Step:
        """Plan a step and make it possible: sequences preempted and admitted, blocks allocated."""
        plan, hits = self._plan()
        for order in plan.preempt:
            victim = self._by_order[order]
            self._leave(victim)
            victim.status = "waiting"
            victim.preemptions += 1
            self.preemptions += 1
            insort(self._waiting, victim, key=_rank)
        for order in plan.admit:
            self._enter(self._by_order[order], hits[order])
        work = []
        for chunk in plan.chunks:
            sequence = self._by_order[chunk.id]
            if chunk.blocks:
                held = len(sequence.blocks)
                sequence.blocks += self.pool.allocate(chunk.blocks)
                self.tables[sequence.row, held : held + chunk.blocks] = sequence.blocks[held:]
            work.append(Work(sequence, chunk.start, chunk.length))
        return Step(tuple(work), tuple(self._by_order[order] for order in plan.impossible))

    def advance(self, work: tuple[Work, ...]) -> None:
        """The chunks are in the cache now: move on, and offer the blocks they filled to others."""
        size = self.pool.block_size
        for item in work:
            sequence = item.sequence
            sequence.computed = item.start + item.length
            if not sequence.store:
                continue
            while (sequence.committed + 1) * size <= sequence.computed:
                number = sequence.committed
                block = self.pool.commit(sequence.chain, number, sequence.ids, sequence.blocks)
                if block != sequence.blocks[number]:
                    sequence.blocks[number] = block
                    self.tables[sequence.row, number] = block
                sequence.committed += 1

    def check(self) -> None:
        """Verify the books: see `BlockPool.check`."""
        self.pool.check(sequence.blocks for sequence in self._running)
        assert len(self._by_order) == len(self._waiting) + len(self._running)
        assert len(self._free_rows) + len(self._running) == len(self.tables)
        for sequence in self._running:
            held = len(sequence.blocks)
            assert self.tables[sequence.row, :held].tolist() == sequence.blocks
            assert not self.tables[sequence.row, held:].any()
            assert sequence.computed <= held * self.pool.block_size
        assert not any(sequence.blocks or sequence.computed for sequence in self._waiting)

    def _plan(self) -> tuple[StepPlan, dict[int, Hit]]:
        size = self.pool.block_size
        available = self.pool.available
        running, waiting = self._running, self._waiting
        # Only a plan that may have to preempt asks what that would yield.
        tight = available < len(running) + self._budget // size + 1
        if not tight and waiting and running:
            tight = waiting[0].priority > running[-1].priority
        rows = tuple(
            Running(
                sequence.order,
                sequence.priority,
                sequence.computed,
                len(sequence.ids),
                len(sequence.blocks),
                self.pool.sole(sequence.blocks) if tight else 0,
            )
            for sequence in running
        )
        candidates, hits = self._candidates()
        view = SchedulerView(rows, candidates, available, self.pool.blocks, size, self._budget, len(self.tables))
        return schedule(view), hits

    def _candidates(self) -> tuple[tuple[Waiting, ...], dict[int, Hit]]:
        """Those at the head of the queue that may start now, and what the cache has of each.

        Nobody overtakes in the queue, so it is cut behind the first one that certainly finds no room. Under load that
        is the first of all, and the look-ups of the others are saved.
        """
        candidates: list[Waiting] = []
        hits: dict[int, Hit] = {}
        size, room = self.pool.block_size, self.pool.available
        lowest = self._running[-1].priority if self._running else None
        for sequence in self._waiting[:LOOKAHEAD]:
            outranks = lowest is not None and sequence.priority > lowest
            if not outranks and (len(candidates) >= len(self._free_rows) or room <= 0):
                break
            hit = self.pool.find(sequence.chain, sequence.ids, len(sequence.ids) - 1)
            hits[sequence.order] = hit
            cached = len(hit.blocks)
            candidates.append(Waiting(sequence.order, sequence.priority, len(sequence.ids), cached * size, hit.idle))
            room -= -(-len(sequence.ids) // size) - cached + hit.idle
            if room < 0 and not outranks:
                break
        return tuple(candidates), hits

    def _enter(self, sequence: Sequence, hit: Hit) -> None:
        self.pool.take(hit)
        self._waiting.remove(sequence)
        insort(self._running, sequence, key=_rank)
        sequence.status = "running"
        sequence.row = self._free_rows.pop()
        sequence.blocks = list(hit.blocks)
        sequence.committed = len(hit.blocks)
        sequence.computed = len(hit.blocks) * self.pool.block_size
        self.tables[sequence.row, : len(hit.blocks)] = hit.blocks
        if sequence.cached_tokens is None:
            sequence.cached_tokens = min(sequence.computed, sequence.prompt_tokens)
            self.cached_tokens += sequence.cached_tokens

    def _leave(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self.tables[sequence.row, : len(sequence.blocks)] = 0
        self._free_rows.append(sequence.row)
        self.pool.release(sequence.blocks)
        sequence.row = -1
        sequence.blocks = []
        sequence.computed = sequence.committed = 0


def _rank(sequence: Sequence) -> tuple[int, int]:
    return -sequence.priority, sequence.order
