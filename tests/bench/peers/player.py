"""Plays requests on a driver and writes down when each token was there. The same for every contender."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .workload import Request


@dataclass(frozen=True, slots=True)
class Event:
    """Tokens of one request that came together."""

    key: int
    ids: list[int]
    at: float
    """`time.perf_counter` seconds."""


class Driver(Protocol):
    """One engine, loaded and ready. Greedy, end-of-sequence ignored."""

    pids: Sequence[int]
    """Processes whose memory is the engine's."""

    def add(self, key: int, prompt: list[int], new_tokens: int) -> None:
        """Hand over a request at once; it may wait inside."""

    def step(self) -> list[Event]:
        """Work, or wait for at most a second; what came of it, in order."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Heard:
    """One request's tokens and their arrivals, seconds since the play began."""

    sent: float
    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


def play(
    driver: Driver,
    requests: Sequence[Request],
    patience: float = 120.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, Heard]:
    """Serve all of them. Raises TimeoutError after `patience` seconds without a token."""
    begin = last = clock()
    heard: dict[int, Heard] = {}
    held = [request for request in requests if request.after is not None]
    wanted = {request.key: request.new_tokens for request in requests}

    def send(request: Request) -> None:
        heard[request.key] = Heard(sent=clock() - begin)
        driver.add(request.key, request.prompt, request.new_tokens)

    for request in requests:
        if request.after is None:
            send(request)
    open_keys = set(wanted)
    while open_keys:
        events = driver.step()
        last = clock() if events else last
        if clock() - last > patience:
            raise TimeoutError(f"no token for {patience:.0f} s; {len(open_keys)} requests open")
        for event in events:
            one = heard[event.key]
            one.ids += event.ids
            one.times += [event.at - begin] * len(event.ids)
            if len(one.ids) > wanted[event.key]:
                raise RuntimeError(f"request {event.key} gave more than {wanted[event.key]} tokens")
            if len(one.ids) == wanted[event.key]:
                open_keys.discard(event.key)
        due = [one for one in held if one.after is not None and len(heard[one.after[0]].ids) >= one.after[1]]
        for request in due:
            held.remove(request)
            send(request)
    return heard
