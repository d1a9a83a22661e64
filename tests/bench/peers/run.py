"""Tiergate beside its peers on one machine, in one interleaved run: `python -P tests/bench/peers/run.py`.

Prints tables of figures and ratios, and writes them beside the records: RECORDS.jsonl (as it goes; `--resume` goes on
from there), .json and .md. Only ratios of one run carry over to another machine, and only from a quiet one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil
from bench.peers import report, workload
from bench.peers.bench import Bench, Plan
from bench.peers.contenders import Contender, contenders
from bench.peers.install import link_model
from bench.peers.machine import build_read_floor
from bench.peers.model import embedded_model
from bench.peers.place import TEXT, Installed, Place
from bench.peers.record import Log, load
from bench.peers.results import Results
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

THREADS = 2


def chosen(everyone: list[Contender], names: str) -> list[Contender]:
    """Those whose engine or label is named. Raises ValueError for a name that fits nobody."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if not any(name in (one.engine, one.label) for one in everyone)]
    if unknown:
        raise ValueError(f"nobody is called {', '.join(unknown)}; there are {', '.join(one.label for one in everyone)}")
    return [one for one in everyone if not wanted or one.engine in wanted or one.label in wanted]


def available(place: Place, taking_part: list[Contender]) -> tuple[list[Contender], dict[str, Installed]]:
    """Those that can run here, and the peers that cannot with the reason."""
    needed = {one.engine: place.installed(one.engine) for one in taking_part}
    for own in ("tiergate", "transformers"):
        needed.pop(own, None)
    absent = {engine: outcome for engine, outcome in needed.items() if not outcome.version}
    return [one for one in taking_part if one.engine not in absent], absent


def show(results: Results, absent: dict[str, Installed], console: Console) -> None:
    for grid in report.grids(results):
        table = Table(title=grid.title, caption=grid.note)
        for column in grid.header:
            table.add_column(column, justify="left" if not column else "right")
        for row in grid.rows:
            table.add_row(*row)
        console.print(table)
    for name, outcome in absent.items():
        console.print(f"{name}: {outcome.reason}")
    for error in results.errors():
        console.print(f"not measured: {error}")


def _machine(cores: list[int]) -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = psutil.virtual_memory().total / 2**30
    return f"{names[0].split(':')[1].strip() if names else 'CPU'}, {len(cores)} cores used, {memory:.0f} GiB."


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default="", help="comma-separated engines or contenders, ours too (default: all)")
    parser.add_argument("--only", default="", help=f"comma-separated scenarios of {', '.join(workload.NAMES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=25.0, help="no further round begins that would end later")
    parser.add_argument("--threads", type=int, default=THREADS, help="of each contender, on as many cores")
    parser.add_argument("--long", type=float, default=30.0, help="seconds above which a scenario is not repeated")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds that a play may take")
    parser.add_argument("--quick", action="store_true", help="little work and one round: to see that it works")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the records that are there; what failed is tried again"
    )
    parser.add_argument("--report", action="store_true", help="only print what the records say")
    parser.add_argument("--records", type=Path, default=Place().root / "results" / "peers.jsonl")
    parser.add_argument("--list", action="store_true", help="say who would take part")
    args = parser.parse_args()
    args.only = [name for name in args.only.split(",") if name] or list(workload.NAMES)
    if unknown := [name for name in args.only if name not in workload.NAMES]:
        parser.error(f"no scenario is called {', '.join(unknown)}; there are {', '.join(workload.NAMES)}")
    return args


def main() -> None:
    args = arguments()
    console = Console()
    place = Place()
    model: Path = embedded_model()
    link_model(place, model)
    cores = sorted(os.sched_getaffinity(0))[: args.threads]
    try:
        taking_part, absent = available(place, chosen(list(contenders(place, model, len(cores))), args.peers))
    except ValueError as error:
        sys.exit(str(error))
    if args.list:
        for one in taking_part:
            console.print(f"{one.label} ({one.bits} bits)")
        for name, outcome in absent.items():
            console.print(f"{name}: {outcome.reason}")
        return
    text = Tokenizer.from_file(str(model / "tokenizer.json")).encode(TEXT.read_text()).ids
    records = load(args.records)
    if not args.report:
        made = workload.scenarios(text, workload.QUICK if args.quick else workload.Sizes())
        rounds = 1 if args.quick else args.rounds
        plan = Plan(
            taking_part, [made[name] for name in args.only], text, cores, rounds, args.minutes, args.long, args.limit
        )
        floor = build_read_floor(place.root, len(cores))
        log = Log(args.records, [one for one in records if args.resume and not one.error])
        Bench(plan, log, place.root, floor, console.print).run()
        records = log.records
    results = Results(taking_part, records)
    show(results, absent, console)
    versions = {one: place.installed(one).version for one in dict.fromkeys(c.engine for c in results.contenders)}
    written = report.markdown(results, absent, _machine(cores), {k: v for k, v in versions.items() if v})
    args.records.with_suffix(".md").write_text(written)
    args.records.with_suffix(".json").write_text(json.dumps([asdict(one) for one in records], indent=1))
    console.print(f"written: {args.records.with_suffix('.md')}")


if __name__ == "__main__":
    main()
