"""The interleaved run: round after round, each contender in turn in a fresh process, only one of them alive."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import workload
from .contenders import Contender
from .machine import ReadFloor, foreign_share, peak_mb, usage
from .metrics import figures, medians
from .process import ContenderError, Process
from .record import PROCESS, Log, Record
from .workload import Scenario


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is made of."""

    contenders: Sequence[Contender]
    scenarios: Sequence[Scenario]
    text: Sequence[int]
    cores: Sequence[int]
    rounds: int = 3
    minutes: float = 25.0
    """A contender's turn that would probably end later is left out, in every round but the first."""
    long: float = 30.0
    """Seconds: a scenario that took longer in the first round is not repeated with that contender."""
    limit: float = 240.0
    """Seconds that a start or a play may take."""


class Bench:
    """One run. `floor` reads memory between two contenders; None where it could not be compiled."""

    def __init__(
        self,
        plan: Plan,
        log: Log,
        folder: Path,
        floor: ReadFloor | None,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._log = log
        self._folder = folder
        self._floor = floor
        self._say = say
        self._clock = clock

    def run(self) -> None:
        """Every turn that is not in the log yet. A contender that fails is recorded, and the run goes on."""
        self._prepare()
        begin = self._clock()
        for number in range(self._plan.rounds):
            for contender in turns(self._plan.contenders, number):
                took = self._log.seconds(0, contender.label) if number else {}
                wanted = [
                    one
                    for one in self._plan.scenarios
                    if not self._log.has(number, contender.label, one.name) and took.get(one.name, 0) <= self._plan.long
                ]
                expected = sum(took.get(name, 0) for name in (PROCESS, *(one.name for one in wanted)))
                if wanted and number and self._clock() - begin + expected > 60 * self._plan.minutes:
                    self._say(f"round {number + 1}, {contender.label}: left out for want of time")
                elif wanted:
                    self._say(f"round {number + 1}, {contender.label}")
                    self._turn(number, contender, wanted)

    def _prepare(self) -> None:
        """Starts ours once, so that a compile or a conversion on first use is not taken for a start."""
        for contender in self._plan.contenders:
            if contender.is_ours:
                self._say(f"preparing {contender.label}")
                try:
                    self._start(contender).close()
                except ContenderError as error:
                    self._say(f"  {error}")

    def _turn(self, number: int, contender: Contender, wanted: Sequence[Scenario]) -> None:
        began = self._clock()
        read_s = self._read(contender)
        process: Process | None = None
        cold_s = peak = 0.0
        try:
            for scenario in wanted:
                if scenario.name == "mixed" and not contender.mixes:
                    self._failed(number, contender, scenario, "takes nothing up while it answers")
                    continue
                if process is None:
                    process = self._start(contender)
                    cold_s = cold_s or process.cold_s
                try:
                    self._log.add(self._measured(number, contender, scenario, process, read_s))
                    peak = max(peak, peak_mb(process.pids))
                except ContenderError as error:
                    self._failed(number, contender, scenario, str(error))
                    process.kill()
                    process = None
        except ContenderError as error:
            for scenario in wanted:
                if not self._log.has(number, contender.label, scenario.name):
                    self._failed(number, contender, scenario, f"did not start: {error}")
        finally:
            if process is not None:
                process.close()
        if peak:
            rest = self._clock() - began - sum(self._log.seconds(number, contender.label).values())
            found = {"cold_s": cold_s, "peak_mb": peak}
            self._log.add(Record(number, contender.label, PROCESS, found, seconds=max(0.0, rest)))

    def _read(self, contender: Contender) -> float:
        try:
            return self._floor.seconds(contender.weight_bytes) if self._floor else 0.0
        except (OSError, subprocess.SubprocessError) as error:
            self._say(f"  the floor is not known: {error}")
            return 0.0

    def _start(self, contender: Contender) -> Process:
        log = self._folder / "logs" / f"{contender.label.replace(' ', '-')}.log"
        process = Process(contender, workload.first_word(self._plan.text), self._plan.cores, log, self._plan.limit)
        try:
            process.play(workload.warm_up(self._plan.text), self._plan.limit)
        except ContenderError:
            process.kill()
            raise
        return process

    def _failed(self, number: int, contender: Contender, scenario: Scenario, why: str) -> None:
        self._say(f"  {scenario.name}: {why}")
        self._log.add(Record(number, contender.label, scenario.name, error=why))

    def _measured(
        self, number: int, contender: Contender, scenario: Scenario, process: Process, read_s: float
    ) -> Record:
        before = usage(process.pid)
        played = [(play, process.play(play, self._plan.limit)) for play in scenario.plays]
        after = usage(process.pid)
        play, heard = played[0]
        return Record(
            number,
            contender.label,
            scenario.name,
            medians([figures(play.requests, heard) for play, heard in played]),
            foreign=foreign_share(before, after, os.cpu_count() or 1),
            read_s=read_s,
            ids=heard[play.requests[0].key].ids,
            seconds=after.at - before.at,
        )


def turns(contenders: Sequence[Contender], number: int) -> list[Contender]:
    """The order of a round: everyone once, beginning with another one each time."""
    start = number * 5 % len(contenders) if contenders else 0
    return [*contenders[start:], *contenders[:start]]
