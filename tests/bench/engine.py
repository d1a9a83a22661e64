"""Engine throughput beside transformers, in one interleaved run: `python -P tests/bench/engine.py`.

Every contender is a process of its own that stays loaded and idle while the others run. For each concurrency the
contenders take turns, round after round, so that a neighbour's load falls on all of them; the table gives medians and
the ratio to our own engine *of the same round*. Only such ratios carry over to another machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
TEXT = (HERE / "text.txt").read_text()


@dataclass
class Worker:
    """A contender's process, spoken to in JSON lines."""

    script: str
    folder: Path
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        command = [sys.executable, "-P", str(HERE / self.script), str(self.folder)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.script} died with status {self.process.wait()}")
        return json.loads(line)  # type: ignore[no-any-return]

    def run(self, how: str, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"how": how, "prompts": prompts, "new_tokens": new_tokens}) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


def make_prompts(folder: Path, count: int) -> list[list[int]]:
    """`count` prompts of 50 to 350 tokens, cut from the shipped text at different places, the same for all."""
    from tokenizers import Tokenizer

    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids
    prompts = []
    for i in range(count):
        length = 50 + (i * 137) % 301
        start = (i * 211) % (len(ids) - length)
        prompts.append(ids[start : start + length])
    return prompts


CONTENDERS = (
    ("tiergate, together", "tiergate", "together"),
    ("tiergate, one at a time", "tiergate", "one_at_a_time"),
    ("transformers generate", "transformers", "generate"),
    ("transformers continuous", "transformers", "continuous"),
)


def bench(folder: Path, plan: dict[int, tuple[int, int]], console: Console) -> list[dict[str, Any]]:
    """`plan` maps concurrency to (rounds, new tokens). Returns one record a contender and concurrency."""
    workers = {
        "tiergate": Worker("worker_tiergate.py", folder),
        "transformers": Worker("worker_transformers.py", folder),
    }
    records = []
    try:
        for how, worker in (("together", "tiergate"), ("generate", "transformers"), ("continuous", "transformers")):
            workers[worker].run(how, make_prompts(folder, 2), 4)  # warm up
        for concurrency, (rounds, new_tokens) in plan.items():
            prompts = make_prompts(folder, concurrency)
            skipped = "tiergate, one at a time" if concurrency in (1, 64) else ""
            runs: dict[str, list[dict[str, Any]]] = {}
            for _ in range(rounds):
                for label, worker, how in CONTENDERS:
                    if label != skipped:
                        runs.setdefault(label, []).append(workers[worker].run(how, prompts, new_tokens))
            table = Table(title=f"{concurrency} at once, prompts 50-350, {new_tokens} new tokens, {rounds} rounds")
            for column in ("", "tok/s", "TTFT median, ms", "TTFT worst, ms", "ours / theirs, tok/s"):
                table.add_column(column, justify="left" if not column else "right")
            ours = runs["tiergate, together"]
            for label, results in runs.items():
                errors = [r["error"] for r in results if "error" in r]
                if errors:
                    table.add_row(label, errors[0][:60], "", "", "")
                    continue
                rates = [r["tokens"] / r["seconds"] for r in results]
                ratios = [
                    (o["tokens"] / o["seconds"]) / (r["tokens"] / r["seconds"])
                    for o, r in zip(ours, results, strict=True)
                ]
                ttft = [t for r in results for t in r["ttft"]]
                record = {
                    "concurrency": concurrency,
                    "contender": label,
                    "tok_s": statistics.median(rates),
                    "ttft_ms": 1e3 * statistics.median(ttft),
                    "ttft_worst_ms": 1e3 * max(ttft),
                    "ours_over_theirs": statistics.median(ratios),
                }
                records.append(record)
                table.add_row(
                    label,
                    f"{record['tok_s']:.1f}",
                    f"{record['ttft_ms']:.0f}",
                    f"{record['ttft_worst_ms']:.0f}",
                    f"{record['ours_over_theirs']:.2f}",
                )
            console.print(table)
    finally:
        for worker in workers.values():
            worker.close()
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a Hugging Face style model folder")
    parser.add_argument("--quick", action="store_true", help="one round each, fewer tokens")
    parser.add_argument("--json", type=Path, help="also write the records here")
    args = parser.parse_args()
    plan = {1: (1, 16), 16: (1, 16)} if args.quick else {1: (5, 64), 16: (3, 64), 64: (2, 64)}
    records = bench(args.folder, plan, Console())
    if args.json:
        args.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
