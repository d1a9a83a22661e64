"""One contender's process, in the peer's own environment: `worker.py <module of the driver> <options as JSON>`.

Says `{"ready", "pids"}` when the first request's first token is there, then answers one JSON job a line,
`{"before": [request], "requests": [request]}`, with `{"heard": {key: {"sent", "ids", "times"}}}` or `{"error"}`.
The first line it reads is the first request.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.peers.player import Driver, play
from bench.peers.workload import Request


def _requests(raw: list[dict[str, Any]]) -> list[Request]:
    return [Request(**{**one, "after": tuple(one["after"]) if one["after"] else None}) for one in raw]


def main() -> None:
    name, options = sys.argv[1], json.loads(sys.argv[2])
    # Whatever a library prints goes to stderr, that of its child processes too.
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    first = _requests([json.loads(sys.stdin.readline())])
    driver: Driver = importlib.import_module(name).open_driver(**options)
    try:
        play(driver, first)
        print(json.dumps({"ready": True, "pids": list(driver.pids)}), file=results)
        for line in sys.stdin:
            job = json.loads(line)
            try:
                if job["before"]:
                    play(driver, _requests(job["before"]))
                heard = play(driver, _requests(job["requests"]))
                answer: dict[str, Any] = {"heard": {key: asdict(one) for key, one in heard.items()}}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=results)
    finally:
        driver.close()


if __name__ == "__main__":
    main()
