"""The engine without its socket: commands in, one step at a time, replies out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .arbiter import pick_lane
from .lane import Lane, Outcome
from .messages import Abort, Failed, Finished, Generate, LaneInfo, Reply, Stats
from .sequence import Sequence
from .validate import find_fault

Replies = dict[bytes, list[Reply]]
"""By client, in order."""


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
        self._outbox: Replies = {}

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
            self._refuse(client, request, Failed(id=request.id, code="invalid", message="this id is in use"))
        elif lane is None:
            names = ", ".join(self._lanes)
            text = f"no lane is named {request.lane!r}; there are {names}"
            self._refuse(client, request, Failed(id=request.id, code="unknown_lane", message=text))
        elif fault := find_fault(request, lane.info):
            self._refuse(client, request, fault)
        elif lane.full:
            self._refuse(client, request, Failed(id=request.id, code="busy", message="too many requests are waiting"))
        else:
            sequence = lane.add(client, request, self._seeds())
            self._live.setdefault(client, {})[request.id] = _Live(lane, sequence)

    def abort(self, client: bytes, command: Abort) -> None:
        """Stop a sequence now. Unknown and ended ones are no error."""
        live = self._live.get(client, {}).get(command.id)
        if live is not None:
            self._post(live.lane.abort(live.sequence))

    def drop(self, client: bytes) -> None:
        """The client is gone: abort all it has, and send it nothing more."""
        for live in tuple(self._live.get(client, {}).values()):
            live.lane.abort(live.sequence)
        self._live.pop(client, None)
        self._outbox.pop(client, None)

    def step(self) -> None:
        """Let one lane take a step, if any has work."""
        if not self.has_work:
            return
        index = 0
        if len(self._order) > 1:
            index = pick_lane([lane.load() for lane in self._order]) or 0
        for other, lane in enumerate(self._order):
            if other != index and lane.has_work:
                lane.pass_over()
        for outcome in self._order[index].step():
            self._post(outcome)

    def take_replies(self) -> Replies:
        """What is to be sent, each reply given out once."""
        replies, self._outbox = self._outbox, {}
        return replies

    def stats(self) -> Stats:
        return Stats(lanes={name: lane.stats() for name, lane in self._lanes.items()})

    def audit(self) -> None:
        """Verify the books and mend them if need be; costs milliseconds, so for idle moments."""
        for lane in self._order:
            for outcome in lane.audit():
                self._post(outcome)

    def check(self) -> None:
        """Verify the books of all lanes. Raises AssertionError."""
        for lane in self._order:
            lane.check()

    def _refuse(self, client: bytes, request: Generate, failed: Failed) -> None:
        self._outbox.setdefault(client, []).append(failed)

    def _post(self, outcome: Outcome) -> None:
        client = outcome.sequence.client
        self._outbox.setdefault(client, []).append(outcome.update)
        if isinstance(outcome.update, (Finished, Failed)):
            live = self._live[client]
            del live[outcome.sequence.id]
            if not live:
                del self._live[client]
