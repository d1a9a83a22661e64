"""A KV block outside of the pool, and what a place to keep such blocks must do."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Saved:
    """The content of one full KV block. Its key is the digest of its whole chain."""

    parent: bytes
    """Key of the block before it; of a first block, the digest of the chain's root."""
    ids: bytes
    """Its token ids, int64."""
    data: bytes
    """Its keys and values over all layers, as the runner keeps them."""


class BlockStore(Protocol):
    """A place for blocks that outlives the process. Called from one thread, which it may keep waiting."""

    def keys(self) -> Collection[bytes]:
        """What is there, least recently used first."""
        ...

    def put(self, key: bytes, saved: Saved) -> tuple[bytes, ...]:
        """Keep a block; the keys of those that had to go for it. Raises `OSError`."""
        ...

    def get(self, key: bytes) -> Saved | None:
        """The block, None where it is not there or no longer what was put. Raises `OSError`."""
        ...

    def drop(self, key: bytes) -> None:
        """Forget a block, if it is there."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class BlockMemory(Protocol):
    """The runner's side: the memory of its KV blocks."""

    kv_block_bytes: int
    """Of one block, over all layers."""

    def read_block(self, block: int) -> bytes:
        """A copy of its keys and values, `kv_block_bytes` long."""
        ...

    def write_block(self, block: int, data: bytes) -> None:
        """Put back what `read_block` gave, into any block."""
        ...
