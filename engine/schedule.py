"""Decides what one step computes. Pure: numbers in, a `StepPlan` out.

There is no prefill and no decode. A sequence has `computed` tokens in the cache and `wanted` ones known; the difference
is its gap, and a step spends a token budget on closing gaps. A decode row is a gap of one, a prompt a long one.

Order of service: higher priority first; within a priority running before waiting, then older before younger. Every
running sequence gets at least one token a step, so a long prompt cannot stop others from decoding; of what is left,
each takes at most half in turn, so it cannot hold up a short prompt for long either; then what remains is topped up in
order.

When blocks run out, the last running sequence in that order is preempted (its blocks released, to be recomputed later),
and only ever for one before it. So the first in order always advances, and by induction all do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Running(NamedTuple):  # a tuple, as Chunk is: many are made every step, and a dataclass takes three times as long
    """A sequence that holds blocks."""

    id: int
    """Arrival number: lower is older."""
    priority: int
    computed: int
    wanted: int
    """More than `computed`."""
    held: int
    """Blocks."""
    sole: int
    """Of these, the ones that its preemption makes available. May be too low; what it costs is another step."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A sequence that holds none; `cached` of its tokens can be taken from the prefix cache."""

    id: int
    priority: int
    wanted: int
    cached: int
    """A multiple of the block size, less than `wanted`."""
    idle: int
    """Blocks of the cached prefix that nobody holds: taking them makes that many unavailable."""


@dataclass(frozen=True, slots=True)
class SchedulerView:
    running: tuple[Running, ...]
    """In order of service: by falling priority, then rising id."""
    waiting: tuple[Waiting, ...]
    """Likewise; it may be cut short."""
    available: int
    """Blocks free or evictable."""
    blocks: int
    """Blocks in all."""
    block_size: int
    budget: int
    """Tokens a step may compute; at least one for each of those running."""
    max_running: int
    """Most that may run; more may do so already, and go on."""


class Chunk(NamedTuple):
    """Compute `length` tokens of a sequence from position `start` on; `blocks` more are needed for it."""

    id: int
    start: int
    length: int
    blocks: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """To be carried out in this order: preempt, admit, then allocate and compute."""

    preempt: tuple[int, ...] = ()
    admit: tuple[int, ...] = ()
    """Waiting sequences that start; each has a chunk."""
    chunks: tuple[Chunk, ...] = ()
    """In order of service; tokens sum up to at most the budget."""
    impossible: tuple[int, ...] = ()
    """Sequences whose wanted tokens can never fit the pool."""


def schedule(view: SchedulerView) -> StepPlan:
    """The plan of one step. Has a chunk, a preemption or an impossible sequence whenever there is work."""
    return _Planner(view).plan()


class _Planner:
    """The books of one call of `schedule`."""

    def __init__(self, view: SchedulerView) -> None:
        self.view = view
        size = view.block_size
        everyone: tuple[Running | Waiting, ...] = (*view.running, *view.waiting)
        self.impossible = [s.id for s in everyone if -(-s.wanted // size) > view.blocks]
        lost = set(self.impossible)
        self.kept = [s for s in view.running if s.id not in lost] if lost else list(view.running)
        self.waiting = [s for s in view.waiting if s.id not in lost] if lost else list(view.waiting)
        self.available = view.available
        self.left = view.budget
        self.unserved = len(self.kept)
        """Running sequences not served yet, each of which is owed a token."""
        self.pledged = 0
        """Blocks that the sequences served so far still need for what they want."""
        self.started = len(view.running) - len(self.kept)
        """Places taken by others than those kept: sequences that start, and impossible ones, not yet removed."""
        self.preempted: list[Running] = []
        self.claimed = 0
        """Blocks that sequences start with and others held when the plan began: those may be the preempted ones'."""
        self.chunks: dict[int, tuple[Running | Waiting, int]] = {}
        """By id, in order of service: the sequence and its tokens."""

    def plan(self) -> StepPlan:
        at = waits = 0
        admit: list[int] = []
        open_door = True
        while at < len(self.kept) or (open_door and waits < len(self.waiting)):
            ahead = open_door and waits < len(self.waiting)
            if at < len(self.kept) and not (ahead and self.waiting[waits].priority > self.kept[at].priority):
                self.unserved -= 1
                self._serve(self.kept[at], at)
                at += 1
            else:
                candidate = self.waiting[waits]
                open_door = self._admit(candidate, at)
                if open_door:
                    admit.append(candidate.id)
                    waits += 1
        self._top_up()
        size = self.view.block_size
        chunks = []
        for id, (sequence, count) in self.chunks.items():
            start, held = _start(sequence, size)
            chunks.append(Chunk(id, start, count, max(0, -(-(start + count) // size) - held)))
        preempt = tuple(victim.id for victim in self.preempted)
        return StepPlan(preempt, tuple(admit), tuple(chunks), tuple(self.impossible))

    def _serve(self, sequence: Running, at: int) -> None:
        """Give a running sequence its first share, preempting those behind it if it cannot move at all."""
        size = self.view.block_size
        room = sequence.held * size - sequence.computed
        while room + self.available * size <= 0 and len(self.kept) > at + 1:
            self._preempt()
        count = min(self._share(sequence.wanted - sequence.computed), room + self.available * size)
        if count > 0:
            self._grant(sequence, count)

    def _admit(self, candidate: Waiting, at: int) -> bool:
        """Start a waiting sequence if all it wants fits beside what others still need; rank may push out lower ones.

        Room that was made for others is not for those who rank no higher than the sequences that had to leave for it.
        """
        view = self.view
        if self.preempted and candidate.priority <= self.preempted[-1].priority:
            return False
        whole, cached = -(-candidate.wanted // view.block_size), candidate.cached // view.block_size
        victims = 0
        available = self.available
        lower = len(self.kept)
        while True:
            running = self.started + len(self.kept) - victims
            # Cached blocks that a victim held are among those its preemption makes available: taken like idle ones.
            taken = cached if victims or self.preempted else candidate.idle
            need = whole - cached + taken
            # A block for every other running sequence, so that admitting this one does not preempt it soon after.
            if running < view.max_running and available - self.pledged - running >= need:
                break
            lower -= 1
            if lower < at or self.kept[lower].priority >= candidate.priority:
                return False
            victims += 1
            available += self._yield_of(self.kept[lower])
        if self.left - (self.unserved - victims) <= 0:
            return False
        for _ in range(victims):
            self._preempt()
        self.available -= taken
        self.claimed += cached - taken
        self.started += 1
        self._grant(candidate, min(self._share(candidate.wanted - candidate.cached), self.available * view.block_size))
        return True

    def _top_up(self) -> None:
        """Spend what the first shares left over, in order of service."""
        size = self.view.block_size
        for id, (sequence, count) in self.chunks.items():
            if self.left <= 0:
                return
            start, held = _start(sequence, size)
            covered = max(held, -(-(start + count) // size))
            more = min(sequence.wanted - start - count, self.left, (covered + self.available) * size - start - count)
            if more > 0:
                self.chunks[id] = sequence, count + more
                self.left -= more
                self.available -= max(0, -(-(start + count + more) // size) - covered)

    def _share(self, gap: int) -> int:
        spare = self.left - self.unserved
        return min(gap, max(1, spare - spare // 2))

    def _grant(self, sequence: Running | Waiting, count: int) -> None:
        size = self.view.block_size
        start, held = _start(sequence, size)
        fresh = max(0, -(-(start + count) // size) - held)
        self.chunks[sequence.id] = sequence, count
        self.left -= count
        self.available -= fresh
        self.pledged += max(0, -(-sequence.wanted // size) - held - fresh)

    def _preempt(self) -> None:
        victim = self.kept.pop()
        self.unserved -= 1
        self.preempted.append(victim)
        self.available += self._yield_of(victim)

    def _yield_of(self, victim: Running) -> int:
        """Blocks that a preemption surely makes available."""
        return max(0, victim.sole - self.claimed)


def _start(sequence: Running | Waiting, size: int) -> tuple[int, int]:
    """Position that comes next, and blocks held before anything is allocated (a hit's counted as held)."""
    if isinstance(sequence, Running):
        return sequence.computed, sequence.held
    return sequence.cached, sequence.cached // size
