"""Blocks in one file of equal slots, found again after a restart.

The file begins with a page that names what the blocks were computed with; one of another origin is begun anew. A slot
is a header (checksums, age, key, parent), the token ids, and the keys and values, padded to whole pages. All that is
read is checked: a slot that a crash left half-written, or that rotted, is no block. Nothing here is a guard against
malice (who can write to the file can write its checksums): the folder must be the user's own, and keys cannot be made
without the secret beside the file (`secret.py`).
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from ..private_folder import private_folder
from .saved import Saved

_PAGE = 4096
_MAGIC = b"tiergate kv 1\n"
_HEADER = struct.Struct("<IIQ16s16sII")
"""crc32 of the rest of the header, crc32 of what follows it, age, key, parent, bytes of ids, bytes of data."""


@dataclass(slots=True)
class _Slot:
    number: int
    age: int


class DiskStore:
    """A `BlockStore`. One process at a time: the file is locked while it is open."""

    def __init__(self, path: Path, *, origin: str, block_bytes: int, ids_bytes: int, budget: int) -> None:
        """`origin` names the weights and formats that blocks of `block_bytes` bytes and `ids_bytes` bytes of token ids
        come from; the file takes `budget` bytes at most.

        Raises `OSError`: for a budget that holds no block, a folder that others can write to, a file in use.
        """
        self._ids_bytes = ids_bytes
        self._block_bytes = block_bytes
        self._slot_bytes = -(-(_HEADER.size + ids_bytes + block_bytes) // _PAGE) * _PAGE
        self._count = (budget - _PAGE) // self._slot_bytes
        if self._count < 1:
            raise OSError(f"{budget} bytes hold no KV block of {block_bytes}")
        private_folder(path.parent)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._slots: OrderedDict[bytes, _Slot] = OrderedDict()
            self._age = 0
            self._open(blake2b(f"{origin}|{block_bytes}|{ids_bytes}".encode(), digest_size=16).digest())
        except BaseException:
            os.close(self._file)
            raise
        used = {slot.number for slot in self._slots.values()}
        self._free = [number for number in range(self._count - 1, -1, -1) if number not in used]

    def keys(self) -> Collection[bytes]:
        """See `BlockStore`."""
        return tuple(self._slots)

    def put(self, key: bytes, saved: Saved) -> tuple[bytes, ...]:
        """See `BlockStore`."""
        assert len(saved.data) == self._block_bytes
        assert len(saved.ids) == self._ids_bytes
        if key in self._slots:
            self._slots.move_to_end(key)
            return ()
        gone: tuple[bytes, ...] = ()
        if not self._free:
            old, slot = self._slots.popitem(last=False)
            gone, self._free = (old,), [slot.number]
        number = self._free.pop()
        self._age += 1
        try:
            _write_all(self._file, self._pack(key, saved), self._at(number))
        except OSError:
            self._free.append(number)
            raise
        self._slots[key] = _Slot(number, self._age)
        return gone

    def get(self, key: bytes) -> Saved | None:
        """See `BlockStore`."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        size = _HEADER.size + self._ids_bytes + self._block_bytes
        raw = os.pread(self._file, size, self._at(slot.number))
        found = self._unpack(raw, key) if len(raw) == size else None
        if found is None:
            self.drop(key)
        else:
            self._slots.move_to_end(key)
        return found

    def drop(self, key: bytes) -> None:
        """See `BlockStore`."""
        slot = self._slots.pop(key, None)
        if slot is not None:
            self._free.append(slot.number)
            os.pwrite(self._file, bytes(_HEADER.size), self._at(slot.number))

    def close(self) -> None:
        """The file stays; another process may use it now."""
        os.close(self._file)

    def _open(self, origin: bytes) -> None:
        first = _MAGIC + origin
        if os.pread(self._file, len(first), 0) != first:
            os.ftruncate(self._file, 0)
            _write_all(self._file, first.ljust(_PAGE, b"\0"), 0)
            return
        os.ftruncate(self._file, min(os.fstat(self._file).st_size, self._at(self._count)))
        found = [
            (age, key, number)
            for number in range(self._count)
            if (entry := self._scan(number))
            for age, key in (entry,)
        ]
        for age, key, number in sorted(found):
            if key not in self._slots:
                self._slots[key] = _Slot(number, age)
        self._age = max((age for age, _, _ in found), default=0)

    def _scan(self, number: int) -> tuple[int, bytes] | None:
        """Age and key of a slot, by its header alone."""
        raw = os.pread(self._file, _HEADER.size, self._at(number))
        if len(raw) < _HEADER.size:
            return None
        check, _, age, key, _, ids, data = _HEADER.unpack(raw)
        good = zlib.crc32(raw[4:]) == check and ids == self._ids_bytes and data == self._block_bytes
        return (age, key) if good else None

    def _pack(self, key: bytes, saved: Saved) -> bytes:
        body = saved.ids + saved.data
        rest = _HEADER.pack(0, zlib.crc32(body), self._age, key, saved.parent, len(saved.ids), len(saved.data))[4:]
        return struct.pack("<I", zlib.crc32(rest)) + rest + body

    def _unpack(self, raw: bytes, key: bytes) -> Saved | None:
        check, sum_of_body, _, stored, parent, _, _ = _HEADER.unpack_from(raw)
        body = memoryview(raw)[_HEADER.size :]
        if zlib.crc32(raw[4 : _HEADER.size]) != check or zlib.crc32(body) != sum_of_body or stored != key:
            return None
        return Saved(parent, bytes(body[: self._ids_bytes]), bytes(body[self._ids_bytes :]))

    def _at(self, number: int) -> int:
        return _PAGE + number * self._slot_bytes


def _write_all(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written
