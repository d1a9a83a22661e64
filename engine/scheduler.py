"""Owns the waiting and running sequences of a lane, and carries out what `schedule` decides."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .block_pool import BlockPool, Hit
from .decode_rows import DecodeRows
from .latency import Shape, with_chunk
from .pace import Pace
from .schedule import Running, SchedulerView, StepPlan, Waiting, schedule
from .sequence import Sequence
from .tiering.tiers import KvTiers

LOOKAHEAD = 16
"""Waiting sequences that a plan considers: more could rarely start in one step, and each costs a cache look-up."""
_NEVER = 1 << 62


class Work(NamedTuple):
    """Compute `length` tokens of `sequence` from `start` on; its blocks are there. The last of them may be drafts."""

    sequence: Sequence
    start: int
    length: int

    @property
    def draws(self) -> int:
        """Tokens that can be chosen behind it: none if known ones are left to compute, else one, and one a draft."""
        return max(0, self.start + self.length - len(self.sequence.ids) + 1)


def shape_of(work: Rows[Work]) -> Shape:
    """What the duration of a step with this work depends on."""
    shape = Shape(0)
    for _, start, length in work:
        shape = with_chunk(shape, start, length)
    return shape


@dataclass(frozen=True, slots=True)
class Step:
    work: tuple[Work, ...]
    impossible: tuple[Sequence, ...] = ()
    """Can never fit; still here, for the caller to fail and remove."""


class Scheduler:
    """State changes only by `add`, `remove`, `begin`, `carry_on`, `break_off` and `advance`."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        budget: int,
        max_running: int,
        max_waiting: int,
        max_blocks: int,
        pace: Pace,
        tiers: KvTiers | None = None,
    ) -> None:
        """`max_blocks` is the most a sequence may hold: the width of the tables."""
        self.pool = pool
        self.tables: npt.NDArray[np.int32] = np.zeros((min(max_running, budget), max_blocks), np.int32)
        """[rows, max_blocks] block ids of running sequences, 0 beyond what they hold."""
        self.preemptions = 0
        self.cached_tokens = 0
        """Prompt tokens found in the prefix cache, each sequence's first time."""
        self._budget = budget
        self._pace = pace
        self._turn = 0
        """Plans made so far."""
        self._tiers = tiers
        self._held_up: set[int] = set()
        """Orders of those who wait for blocks that are being fetched."""
        self._max_waiting = max_waiting
        self._free_rows = list(range(len(self.tables) - 1, -1, -1))
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._by_order: dict[int, Sequence] = {}
        self._decoding: DecodeRows | None = None
        """Those running, while all there is to do for each is to decode."""

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
            total += sequence.wanted - sequence.computed
            if total >= self._budget:
                return self._budget
        return total

    @property
    def context(self) -> int:
        """Tokens that running sequences have, computed or not."""
        rows = self._decoding
        return sum(len(sequence.ids) for sequence in self._running) if rows is None else rows.context

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
            if self._tiers:
                self._tiers.leave(sequence.order)
        sequence.status = "done"

    def distrust(self, sequence: Sequence) -> None:
        """Keep what this sequence computed or built upon from being reused by others."""
        self.pool.forget(sequence.blocks)

    def begin(self) -> Step:
        """Plan a step and make it possible: sequences preempted and admitted, blocks allocated."""
        self._decoding = None
        plan, hits = self._plan()
        self._turn += 1
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
                self._grant(sequence, chunk.blocks)
            work.append(Work(sequence, chunk.start, chunk.length))
        return Step(tuple(work), tuple(self._by_order[order] for order in plan.impossible))

    def carry_on(self, most: int) -> tuple[DecodeRows, int] | None:
        """What `begin` would plan where that is a token for everyone who runs and nothing else, without planning it.

        Blocks are allocated for the keys and values of as many tokens as the number that comes along: `most`, 1 or
        more, unless that takes more blocks than there are or goes beyond what all can draw calmly. None where there
        is anything else to do.
        """
        rows = self._decoding
        if rows is None:
            rows = self._form_decode_rows()
        if rows is None or not self._door_is_shut():
            return None
        count = min(most, rows.calm)
        grants = rows.lacking(count)
        if count > 1 and sum(blocks for _, blocks in grants) > self.pool.available:
            count, grants = 1, rows.lacking(1)
        if grants:
            if sum(blocks for _, blocks in grants) > self.pool.available:
                return None
            for index, blocks in grants:
                self._grant(rows.sequences[index], blocks)
            rows.granted(grants)
        return rows, count

    def decoders(self) -> Rows[Sequence]:
        """Everyone who runs, where all there is to do is a token for each; nobody where there is anything else."""
        rows = self._decoding
        if not self._door_is_shut():
            return ()
        if rows is not None:
            return rows.sequences
        return () if any(s.wanted - s.computed != 1 for s in self._running) else tuple(self._running)

    def decodes(self, rows: DecodeRows) -> bool:
        """Whether what `carry_on` gave is still what there is to do."""
        return self._decoding is rows

    def break_off(self) -> None:
        """A sequence that decoded has more to do now than that."""
        self._decoding = None

    def advance(self, sequence: Sequence, computed: int) -> None:
        """`computed` tokens, none of them a draft, are in the cache now: offer the blocks they filled to others."""
        sequence.computed = computed
        if not sequence.store:
            sequence.fills_at = _NEVER
            return
        size = self.pool.block_size
        while (sequence.committed + 1) * size <= computed:
            number = sequence.committed
            block = self.pool.commit(sequence.chain, number, sequence.ids, sequence.blocks)
            if block != sequence.blocks[number]:
                sequence.blocks[number] = block
                self.tables[sequence.row, number] = block
            sequence.committed += 1
        sequence.fills_at = (sequence.committed + 1) * size + 1

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
        if self._tiers:
            self._fetch(self._tiers)
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
                sequence.wanted,
                len(sequence.blocks),
                self.pool.sole(sequence.blocks) if tight else 0,
            )
            for sequence in running
        )
        candidates, hits = self._candidates()
        budget = self._pace.budget(rows, candidates, self._budget, self._turn)
        places = self._pace.places(rows, candidates, len(self.tables))
        view = SchedulerView(rows, candidates, available, self.pool.blocks, size, budget, places)
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
            if sequence.order in self._held_up:
                continue
            hit = self.pool.find(sequence.chain, sequence.ids, len(sequence.ids) - 1)
            hits[sequence.order] = hit
            cached = len(hit.blocks)
            candidates.append(Waiting(sequence.order, sequence.priority, len(sequence.ids), cached * size, hit.idle))
            room -= -(-len(sequence.ids) // size) - cached + hit.idle
            if room < 0 and not outranks:
                break
        return tuple(candidates), hits

    def _fetch(self, tiers: KvTiers) -> None:
        """Have the blocks put back that those at the head of the queue can use.

        Apart from the look-ups of a plan: what is put back may take the place of what one has found.
        """
        self._held_up.clear()
        for sequence in self._waiting[:LOOKAHEAD]:
            if len(self._held_up) >= len(self._free_rows) or self.pool.available <= 0:
                break
            if tiers.fetch(sequence.order, self.pool, sequence.chain, sequence.ids):
                self._held_up.add(sequence.order)

    def _form_decode_rows(self) -> DecodeRows | None:
        """None unless everyone who runs has a gap of exactly one and wants no log-probabilities."""
        for sequence in self._running:
            if sequence.wanted - sequence.computed != 1 or sequence.sampling.logprobs is not None:
                return None
        if self._running:
            self._decoding = DecodeRows(self._running, self.pool.block_size)
        return self._decoding

    def _door_is_shut(self) -> bool:
        """Whether a plan would certainly let nobody in: there is no place, or the first in the queue finds no room."""
        if not self._waiting:
            return True
        first, pool = self._waiting[0], self.pool
        if self._running and first.priority > self._running[-1].priority:
            return False
        if not self._free_rows or pool.available <= 0:
            return True
        blocks = -(-len(first.ids) // pool.block_size)
        if blocks > pool.blocks:  # to be named as impossible
            return False
        hit = pool.find(first.chain, first.ids, len(first.ids) - 1)
        return blocks - len(hit.blocks) + hit.idle > pool.available

    def _grant(self, sequence: Sequence, blocks: int) -> None:
        held = len(sequence.blocks)
        sequence.blocks += self.pool.allocate(blocks)
        self.tables[sequence.row, held : held + blocks] = sequence.blocks[held:]

    def _enter(self, sequence: Sequence, hit: Hit) -> None:
        self._decoding = None
        self.pool.take(hit)
        self._waiting.remove(sequence)
        if self._tiers:
            self._tiers.leave(sequence.order)
        insort(self._running, sequence, key=_rank)
        sequence.status = "running"
        sequence.stale = True
        sequence.row = self._free_rows.pop()
        sequence.blocks = list(hit.blocks)
        sequence.committed = len(hit.blocks)
        sequence.computed = len(hit.blocks) * self.pool.block_size
        self.tables[sequence.row, : len(hit.blocks)] = hit.blocks
        if sequence.cached_tokens is None:
            sequence.cached_tokens = min(sequence.computed, sequence.prompt_tokens)
            self.cached_tokens += sequence.cached_tokens

    def _leave(self, sequence: Sequence) -> None:
        self._decoding = None
        self._running.remove(sequence)
        self.tables[sequence.row, : len(sequence.blocks)] = 0
        self._free_rows.append(sequence.row)
        self.pool.release(sequence.blocks)
        sequence.row = -1
        sequence.drafts = ()
        sequence.blocks = []
        sequence.computed = sequence.committed = 0


def _rank(sequence: Sequence) -> tuple[int, int]:
    return -sequence.priority, sequence.order
