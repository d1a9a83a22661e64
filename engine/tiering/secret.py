"""The secret under which chains of blocks are hashed, kept where their blocks outlive the process."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..private_folder import private_folder

BYTES = 32


def stored_secret(path: Path) -> bytes:
    """The secret in the file `path`, made at the first time, readable by this user alone.

    Raises `OSError`: `PermissionError` where others could have read it.
    """
    private_folder(path.parent)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _read(path)
    with os.fdopen(file, "wb") as out:
        secret = os.urandom(BYTES)
        out.write(secret)
    return secret


def _read(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        facts = os.fstat(file.fileno())
        if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            raise PermissionError(f"others can read {path}")
        secret = file.read(BYTES + 1)
    if len(secret) != BYTES:
        raise OSError(f"{path} is not a secret of {BYTES} bytes; remove it, and the blocks beside it, to start anew")
    return secret
