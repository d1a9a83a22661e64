"""Runs tests on the CPU core built with the address and undefined-behaviour sanitizers: `make sanitize`.

An error ends the run with the sanitizer's report. Arguments are pytest's; without any, all tests of the core are run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tiergate.kernels.toolchain import find_compiler

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = ("tests/kernels", "tests/engine/test_cpu_runner.py", "tests/engine/test_cpu_step.py", "-k", "cpu or abi")
INSIDE = """
import functools, sys
import pytest
from tiergate.kernels import build, native
native.built_library = functools.partial(build.built_library, sanitize=True)
with build.built_library(sanitize=True):
    pass
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-o", "timeout=600", *sys.argv[1:]]))
"""


def main() -> int:
    ask = [find_compiler().path, "-print-file-name=libasan.so"]
    runtime = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    environment = os.environ | {
        # The interpreter was not built with the sanitizer, so its runtime has to be there first.
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:strict_init_order=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-P", "-c", INSIDE, *(sys.argv[1:] or TESTS)]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
