"""A contender for tests of the benchmark itself: tokens are counted, not computed. Standard library only."""

from __future__ import annotations

import os
import time

from bench.peers.player import Event


class FakePeer:
    """Every request gets a token a step, of ids that count up from its prompt's length.

    `fault` is what happens at a prompt of 1024 tokens: `raise`, `die` or `hang`.
    """

    def __init__(self, fault: str = "", step_s: float = 0.0) -> None:
        self.pids = [os.getpid()]
        self.fault = fault
        self.step_s = step_s
        self.open: dict[int, tuple[int, int]] = {}
        self.most_open = 0
        self.closed = False

    def add(self, key: int, prompt: list[int], new_tokens: int) -> None:
        if len(prompt) >= 1024:
            if self.fault == "raise":
                raise ValueError("too long for me")
            if self.fault == "die":
                os._exit(3)
            if self.fault == "hang":
                time.sleep(60)
        self.open[key] = (len(prompt), new_tokens)
        self.most_open = max(self.most_open, len(self.open))

    def step(self) -> list[Event]:
        time.sleep(self.step_s)
        events = []
        for key, (next_id, left) in list(self.open.items()):
            events.append(Event(key, [next_id], time.perf_counter()))
            if left == 1:
                del self.open[key]
            else:
                self.open[key] = (next_id + 1, left - 1)
        return events

    def close(self) -> None:
        self.closed = True


def open_driver(fault: str = "", step_s: float = 0.0) -> FakePeer:
    return FakePeer(fault, step_s)
