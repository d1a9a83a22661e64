"""What the machine did meanwhile: others' share of its CPU time, memory of an engine, how fast memory can be read."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

SOURCE = Path(__file__).with_name("read_floor.cpp")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds so far: of the whole machine, taken by its host, and of one process tree."""

    at: float
    busy: float
    stolen: float
    own: float


def usage(root: int) -> Usage:
    """Now. `root` and its descendants are the own ones, and so is this process."""
    times = psutil.cpu_times()
    own = sum(_cpu(process) for process in _tree(root)) + _cpu(psutil.Process())
    busy = times.user + times.nice + times.system + times.irq + times.softirq
    return Usage(time.perf_counter(), busy, times.steal, own)


def foreign_share(before: Usage, after: Usage, cores: int) -> float:
    """Share of the machine's time, 0 to 1, that neither idled nor was spent by the own processes; stolen time is
    foreign. Ticks of 10 ms make short spans rough."""
    span = cores * (after.at - before.at)
    foreign = (after.busy - before.busy) - (after.own - before.own) + (after.stolen - before.stolen)
    return min(1.0, max(0.0, foreign / span)) if span > 0 else 0.0


def peak_mb(pids: Iterable[int]) -> float:
    """Most memory, MB, that these processes and their descendants held, each at its own time (VmHWM)."""
    seen = {process.pid for pid in pids for process in _tree(pid)}
    return sum(_high_water(pid) for pid in seen) / 1e3


def _high_water(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def _tree(root: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system


@dataclass(frozen=True, slots=True)
class ReadFloor:
    """Reads buffers of a given size, over and over."""

    binary: Path
    threads: int

    def seconds(self, size: int) -> float:
        """Median time of one read of `size` bytes."""
        command = [str(self.binary), str(self.threads), str(size)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return float(done.stdout.split()[0])


def build_read_floor(folder: Path, threads: int) -> ReadFloor | None:
    """Compiled on first use; None without a compiler."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        return None
    binary = folder / "read_floor"
    if not binary.exists() or binary.stat().st_mtime < SOURCE.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        command = [compiler, "-std=c++20", "-O3", "-march=native", "-pthread", str(SOURCE), "-o", str(binary)]
        subprocess.run(command, check=True, capture_output=True)
    return ReadFloor(binary, threads)
