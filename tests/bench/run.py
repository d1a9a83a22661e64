"""`make bench`: native steps beside their floor, the engine beside transformers, its own share, the gateway's cost.

Tables on the terminal, `--json` for all.

What it is about to measure is interleaved and repeated; still, read the ratios and the CPU times, not the seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import engine, engine_host, gateway, steps
from rich.console import Console

from fakes.models import embedded_catalog
from tiergate.kernels import ThreadPool
from tiergate.tiers import Catalog

ENGINE = {1: (5, 64), 16: (3, 64), 64: (2, 64)}
ENGINE_QUICK = {1: (1, 16), 16: (1, 16)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=("all", "steps", "engine", "host", "gateway"), default="all")
    parser.add_argument("--quick", action="store_true", help="smaller and only once: to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all records here")
    args = parser.parse_args()
    console = Console(width=120)
    catalog: Catalog = embedded_catalog()
    folder = catalog.resolve("smollm2-135m").path
    records: dict[str, list[dict[str, Any]]] = {}
    if args.part in ("all", "steps"):
        brief = steps.Plan(precisions=("int8",), rows=(1, 4), contexts=(256,), rounds=3)
        records["steps"] = steps.bench(folder, ThreadPool(1), brief if args.quick else steps.Plan(), console)
    if args.part in ("all", "engine"):
        records["engine"] = engine.bench(folder, ENGINE_QUICK if args.quick else ENGINE, console)
    if args.part in ("all", "host"):
        records["host"] = engine_host.bench(console, batches=2 if args.quick else 20)
    if args.part in ("all", "gateway"):
        small = gateway.Plan(rounds=1, requests=500, long=200, alone=50, streams=32, paced=20)
        plan = small if args.quick else gateway.Plan()
        records["gateway"] = gateway.bench(catalog.root, folder, plan, console)
    if args.json:
        args.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
