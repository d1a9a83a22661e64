"""What a run writes down, one JSON line a measurement, so that an interrupted run can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

PROCESS = "process"
"""The scenario of what is known of a process as a whole: its start and its memory."""


@dataclass(frozen=True, slots=True)
class Record:
    """One contender at one scenario in one round."""

    round: int
    contender: str
    scenario: str
    figures: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    foreign: float = 0.0
    """Share of the machine that others used meanwhile."""
    read_s: float = 0.0
    """Seconds that one read of its weights took, beside its process; 0: not known."""
    ids: Sequence[int] = ()
    """What the first request of the scenario was answered, for comparison."""
    seconds: float = 0.0
    """What it took, to plan with."""


def load(path: Path) -> list[Record]:
    """All records of a file; none when there is no file."""
    return [Record(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


class Log:
    """A file of records, appended to at once. Begins with `records` and nothing else."""

    def __init__(self, path: Path, records: Sequence[Record] = ()) -> None:
        self._path = path
        self.records: list[Record] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        self.records.append(record)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(record)) + "\n")

    def has(self, round: int, contender: str, scenario: str) -> bool:
        return any((one.round, one.contender, one.scenario) == (round, contender, scenario) for one in self.records)

    def seconds(self, round: int, contender: str) -> dict[str, float]:
        """What each scenario of a contender's turn took."""
        return {one.scenario: one.seconds for one in self.records if (one.round, one.contender) == (round, contender)}
