"""The records of a run, asked for medians, ratios and what went wrong. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import takewhile

from .contenders import Contender
from .metrics import Measure
from .record import PROCESS, Record


class Results:
    """Of those contenders that were heard of, in their given order."""

    def __init__(self, contenders: Sequence[Contender], records: Iterable[Record]) -> None:
        self._records = list(records)
        heard = {one.contender for one in self._records}
        self.contenders = [one for one in contenders if one.label in heard]

    def values(self, contender: Contender, measure: Measure) -> dict[int, float]:
        """By round."""
        records = self._of(contender, measure.scenario)
        return {one.round: one.figures[measure.name] for one in records if measure.name in one.figures}

    def median(self, contender: Contender, measure: Measure) -> float | None:
        values = self.values(contender, measure)
        return statistics.median(values.values()) if values else None

    def best(self, contenders: Iterable[Contender], measure: Measure) -> Contender | None:
        """The one with the best median; None when nobody has one."""
        known = [(value, one) for one in contenders if (value := self.median(one, measure)) is not None]
        if not known:
            return None
        pick = max if measure.better == "more" else min
        return pick(known, key=lambda pair: pair[0])[1]

    def ratio(self, ours: Contender, theirs: Contender, measure: Measure) -> float | None:
        """How many times better ours is: the median over the rounds that both were measured in."""
        mine, other = self.values(ours, measure), self.values(theirs, measure)
        both = [(mine[n], other[n]) for n in mine.keys() & other.keys() if mine[n] > 0 and other[n] > 0]
        ratios = [a / b if measure.better == "more" else b / a for a, b in both]
        return statistics.median(ratios) if ratios else None

    def floor_share(self, contender: Contender) -> float | None:
        """Of the decode rate of one stream that reading the weights alone would allow."""
        known = [one for one in self._of(contender, "one") if one.read_s and "decode_tok_s" in one.figures]
        return statistics.median(one.figures["decode_tok_s"] * one.read_s for one in known) if known else None

    def read_gb_s(self) -> tuple[float, float] | None:
        """Slowest and fastest read of weights between the contenders, GB/s."""
        rates = [
            contender.weight_bytes / record.read_s / 1e9
            for contender in self.contenders
            for record in self._of(contender)
            if record.read_s
        ]
        return (min(rates), max(rates)) if rates else None

    def foreign(self, contender: Contender) -> tuple[float, float]:
        """Median and most of others' share of the machine."""
        shares = [one.foreign for one in self._of(contender) if one.figures and one.scenario != PROCESS]
        return (statistics.median(shares), max(shares)) if shares else (0.0, 0.0)

    def rounds(self, contender: Contender) -> int:
        return len({one.round for one in self._of(contender) if one.figures})

    def agreement(self, contender: Contender, reference: Contender) -> tuple[int, int] | None:
        """How many of its first tokens of one stream are the reference's, and of how many. None: not known."""
        mine, other = self._ids(contender), self._ids(reference)
        if not mine or not other:
            return None
        same = takewhile(lambda pair: pair[0] == pair[1], zip(mine, other, strict=False))
        return sum(1 for _ in same), len(other)

    def errors(self) -> list[str]:
        """What was not measured and why, each once."""
        grouped: dict[tuple[str, str], dict[str, None]] = {}
        for one in self._records:
            if one.error:
                grouped.setdefault((one.contender, one.error), {})[one.scenario] = None
        return [f"{contender} ({', '.join(names)}): {error}" for (contender, error), names in grouped.items()]

    def _ids(self, contender: Contender) -> Sequence[int]:
        return next((one.ids for one in self._of(contender, "one") if one.ids), ())

    def _of(self, contender: Contender, scenario: str = "") -> list[Record]:
        """Its records, of one scenario or of all."""
        mine = (one for one in self._records if one.contender == contender.label)
        return [one for one in mine if scenario in ("", one.scenario)]
