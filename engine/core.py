"""The engine without its socket: commands in, one step at a time, replies out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .arbiter import pick_lane
from .lane import Lane
from .messages import Abort, Failed, Generate, LaneInfo, Stats
from .outbox import Outbox, Replies
from .sequence import Sequence
from .validate import find_fault


@dataclass(slots=True)
class _Live:
    lane: Lane
    sequence: Sequence


class EngineCore:
    """Owns the lanes and knows which sequences live. For one thread; nothing a client sends makes it raise."""

    def __init__(self, lanes: Iterable[Lane], *, seeds: Callable[[], int]) -> None:
        """`seeds` gives an int64 to each sequence that names none."""
        self._lanes = {lane.config.name: lane for lane in lanes}
        self._order = tuple(self._lanes.values())
        self._seeds = seeds
        self._live: dict[bytes, dict[str, _Live]] = {}
        self._outbox = Outbox()

    @property
    def lanes(self) -> dict[str, LaneInfo]:
        return {name: lane.info for name, lane in self._lanes.items()}

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return any(lane.has_work for lane in self._order)

    def add(self, client: bytes, request: Generate) -> None:
        """Start a sequence, or answer why not."""
        live = self._live.get(client, {})
        lane = self._lanes.get(request.lane)
        if request.id in live:
            self._refuse(client, Failed(id=request.id, code="invalid", message="this id is in use"))
        elif lane is None:
            names = ", ".join(self._lanes)
            text = f"no lane is named {request.lane!r}; there are {names}"
            self._refuse(client, Failed(id=request.id, code="unknown_lane", message=text))
        elif fault := find_fault(request, lane.info):
            self._refuse(client, fault)
        elif lane.full:
            self._refuse(client, Failed(id=request.id, code="busy", message="too many requests are waiting"))
        else:
            sequence = lane.add(client, request, self._seeds())
            self._live.setdefault(client, {})[request.id] = _Live(lane, sequence)

    def abort(self, client: bytes, command: Abort) -> None:
        """Stop a sequence now. Unknown and ended ones are no error."""
        live = self._live.get(client, {}).get(command.id)
        if live is not None:
            live.lane.abort(live.sequence, self._outbox)
            self._forget_ended()

    def drop(self, client: bytes) -> None:
        """The client is gone: abort all it has, and send it nothing more."""
        for live in self._live.get(client, {}).values():
            live.lane.abort(live.sequence, self._outbox)
        self._forget_ended()
        self._outbox.discard(client)

    def step(self, wake: int | None = None) -> None:
        """Let one lane take a step, if any has work.

        `wake` is a file descriptor that turns readable when a command comes in, or -1: with it, and while no other lane
        has work, a step may draw several tokens of each sequence before it returns. None: one of each.
        """
        working = [lane for lane in self._order if lane.has_work]
        if not working:
            return
        lane = working[0]
        if len(working) > 1:
            wake = None
            lane = working[pick_lane([each.load() for each in working]) or 0]
            for other in working:
                if other is not lane:
                    other.pass_over()
        lane.step(self._outbox, wake)
        self._forget_ended()

    def take_replies(self) -> Replies:
        """What is to be sent, each reply given out once."""
        return self._outbox.take()

    def stats(self) -> Stats:
        return Stats(lanes={name: lane.stats() for name, lane in self._lanes.items()})

    def audit(self) -> None:
        """Verify the books and mend them if need be; costs milliseconds, so for idle moments."""
        for lane in self._order:
            lane.audit(self._outbox)
        self._forget_ended()

    def close(self) -> None:
        """Let every lane store what a later process can use. Nothing else may follow."""
        for lane in self._order:
            lane.close()

    def check(self) -> None:
        """Verify the books of all lanes. Raises AssertionError."""
        for lane in self._order:
            lane.check()

    def _refuse(self, client: bytes, failed: Failed) -> None:
        self._outbox.to(client).append(failed)

    def _forget_ended(self) -> None:
        for sequence in self._outbox.take_ended():
            live = self._live[sequence.client]
            del live[sequence.id]
            if not live:
                del self._live[sequence.client]
