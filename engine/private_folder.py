"""Folders of this user's own, for files that the engine believes when it finds them again."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def private_folder(path: Path) -> Path:
    """`path`, made if need be, once it is sure that nobody else can write there.

    Raises `OSError`: `PermissionError` where others can.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = path.stat()
    if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"others can write to {path}")
    return path
