"""Tables of a run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .contenders import Bits, Contender
from .metrics import MEASURES, Measure
from .place import Installed
from .results import Results

BITS: tuple[Bits, ...] = (16, 8, 4)


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: the first column names its rows."""

    title: str
    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"### {self.title}\n\n{self.note}\n\n{table}\n"


def grids(results: Results) -> list[Grid]:
    """All tables of a report."""
    ours = [one for one in results.contenders if one.is_ours]
    tables = [_figures(results)]
    if ours and len(ours) < len(results.contenders):
        tables += [_best(results, ours), _equal(results, ours)]
    return tables


def _figures(results: Results) -> Grid:
    rows = [
        [_name(one), *(number(results.median(contender, one)) for contender in results.contenders)]
        for one in MEASURES
        if any(results.values(contender, one) for contender in results.contenders)
    ]
    rows += [
        ["decode of its floor", *(_floor(results, one) for one in results.contenders)],
        ["same ids", *(_agreement(results, one) for one in results.contenders)],
        ["others' CPU, usual and most", *(_foreign(results, one) for one in results.contenders)],
        ["rounds", *(str(results.rounds(one)) for one in results.contenders)],
    ]
    read = results.read_gb_s()
    span = f" ({read[0]:.0f} to {read[1]:.0f} GB/s, read between the contenders)" if read else ""
    note = (
        f"Medians over the rounds. Floor: one stream's decode if a token took one read of the weights{span}."
        " Same ids: how long its greedy answer is that of the first transformers column."
    )
    return Grid("Figures", note, ["", *(one.label for one in results.contenders)], rows)


def _name(measure: Measure) -> str:
    return f"{measure.title}, {measure.unit}"


def _floor(results: Results, contender: Contender) -> str:
    share = results.floor_share(contender)
    return "-" if share is None else f"{share:.0%}"


def _agreement(results: Results, contender: Contender) -> str:
    reference = next((one for one in results.contenders if one.engine == "transformers"), None)
    same = results.agreement(contender, reference) if reference else None
    return "-" if same is None else f"{same[0]}/{same[1]}"


def _foreign(results: Results, contender: Contender) -> str:
    usual, most = results.foreign(contender)
    return f"{usual:.0%}, {most:.0%}"


def _best(results: Results, ours: Sequence[Contender]) -> Grid:
    engines = list(dict.fromkeys(one.engine for one in results.contenders if not one.is_ours))
    rows = []
    for measure in MEASURES:
        mine = results.best(ours, measure)
        if mine is None:
            continue
        others = [
            results.best([one for one in results.contenders if one.engine == engine], measure) for engine in engines
        ]
        ratios = [ratio for one in others if one and (ratio := results.ratio(mine, one, measure)) is not None]
        rows.append(
            [
                _name(measure),
                f"{number(results.median(mine, measure))} ({mine.label})",
                *(_against(results, mine, one, measure) for one in others),
                f"{min(ratios):.2f}" if ratios else "-",
            ]
        )
    note = (
        "Each engine at whichever of its precisions is best at that, named with its figure. Ratios above 1: ours is"
        " better; within one and the same round, medians over the rounds. Least: against the best peer."
    )
    return Grid("Ours against each peer, best precision", note, ["", "ours", *engines, "least"], rows)


def _equal(results: Results, ours: Sequence[Contender]) -> Grid:
    rows = []
    for measure in MEASURES:
        cells = []
        for bits in BITS:
            mine = results.best([one for one in ours if one.bits == bits], measure)
            peers = [one for one in results.contenders if one.bits == bits and not one.is_ours]
            cells.append(_against(results, mine, results.best(peers, measure), measure) if mine else "-")
        if any(cell != "-" for cell in cells):
            rows.append([_name(measure), *cells])
    note = "Weights of as many bits. Ratios above 1: ours is better than the best peer, which is named with its figure."
    return Grid("Ours against the best peer, equal precision", note, ["", *(f"{bits} bits" for bits in BITS)], rows)


def _against(results: Results, mine: Contender, other: Contender | None, measure: Measure) -> str:
    if other is None:
        return "-"
    ratio = results.ratio(mine, other, measure)
    return f"{'-' if ratio is None else f'{ratio:.2f}'} ({other.label} {number(results.median(other, measure))})"


def number(value: float | None) -> str:
    """Three digits or so; a dash for none."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def markdown(results: Results, absent: Mapping[str, Installed], machine: str, versions: Mapping[str, str]) -> str:
    """The whole report."""
    known = ", ".join(f"{name} {version}" for name, version in versions.items())
    parts = [f"{machine}\n", f"Versions: {known}.\n", *(grid.markdown() for grid in grids(results))]
    missing = [f"- {name}: {outcome.reason}" for name, outcome in absent.items()]
    missing += [f"- {one}" for one in results.errors()]
    if missing:
        parts.append("### Not measured\n\n" + "\n".join(missing) + "\n")
    return "\n".join(parts)
