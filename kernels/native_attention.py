"""Attention and the cache write of the CPU core on arrays of their own, apart from a step."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .dispatch import Unavailable
from .native import library

PAGE = 16
"""Tokens of a page; a KV block is one or more of them."""

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Bits = npt.NDArray[np.uint16]
"""bf16 values by their bits."""
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A layer and its cache."""

    heads: int
    kv_heads: int
    head_dim: int
    blocks: int
    block_size: int = 16
    rope_dim: int = 0
    """Dimensions that are rotated; 0: none."""
    window: int = 0
    int8: bool = False
    """Keys and values as int8 with a scale per token and kv head instead of bf16."""
    scale: float = 1.0
    eps: float = 1e-5

    @property
    def padded_dim(self) -> int:
        return -(-self.head_dim // 32) * 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a kernel is run: at a level of `cpu/abi.h`, its work shared among `ranks`."""

    level: int
    ranks: int = 1
    threads: bool = False
    """Ranks run on threads of their own instead of one after the other."""
    combine: bool = False
    """The merge of shared spans is called even where no rows need it."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Sequences of a step: their new rows, lengths (new rows included), and block tables."""

    query_starts: Ints
    """[S + 1]."""
    seq_lens: Ints
    """[S]."""
    table_rows: Ints
    """[S], row of `tables` of each sequence."""
    tables: Ints
    """[rows, width]."""

    @property
    def tokens(self) -> int:
        return int(self.query_starts[-1])

    @property
    def owners(self) -> Ints:
        """[T], sequence of each row."""
        return np.repeat(np.arange(len(self.seq_lens), dtype=np.int32), np.diff(self.query_starts))

    @property
    def positions(self) -> Ints:
        """[T], position of each row."""
        rows = np.arange(self.tokens, dtype=np.int32)
        return (self.seq_lens[self.owners] - self.query_starts[1:][self.owners] + rows).astype(np.int32)


class _Probe(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("level", "ranks", "threads", "combine")),
        *((name, ctypes.c_int32) for name in ("heads", "kv_heads", "head_dim", "rope_dim")),
        *((name, ctypes.c_int32) for name in ("kv_format", "block_size", "blocks", "window")),
        *((name, ctypes.c_int32) for name in ("tokens", "sequences", "table_width", "reserved")),
        *((name, ctypes.c_float) for name in ("scale", "eps")),
        *((name, ctypes.c_void_p) for name in ("cos", "sin", "q_norm", "k_norm", "qkv", "queries")),
        *((name, ctypes.c_void_p) for name in ("query_starts", "seq_lens", "positions", "owners")),
        *((name, ctypes.c_void_p) for name in ("table_rows", "tables", "cache", "scratch", "out")),
    )


def aligned(size: int) -> Bytes:
    """`size` bytes at a multiple of 64."""
    memory = np.empty(size + 64, np.uint8)
    return memory[(start := -memory.ctypes.data % 64) : start + size]


def cache_bytes(shape: Shape) -> int:
    """Bytes of a layer's cache."""
    native = library().tg_kv_bytes
    native.restype = ctypes.c_int64
    return int(native(int(shape.int8), shape.blocks, shape.block_size, shape.kv_heads, shape.head_dim))


def scratch(shape: Shape, ranks: int) -> Bytes:
    """Memory that `attend` works in."""
    probe = _probe(shape, Run(level=0, ranks=ranks))
    native = library().tg_probe_attention_scratch
    native.restype = ctypes.c_int64
    return aligned(native(ctypes.byref(probe)))


def rope_kv(
    shape: Shape,
    batch: Batch,
    run: Run,
    qkv: Floats,
    cache: Bytes,
    *,
    cos: Floats,
    sin: Floats,
    q_norm: Floats | None = None,
    k_norm: Floats | None = None,
) -> Bits:
    """Rotate, write keys and values into `cache`, give the queries [T, heads, padded dim].

    qkv [T, (heads + 2 kv_heads) * head_dim] is used up; cos, sin [T, rope_dim / 2]. Raises `Unavailable` for a level
    that this machine lacks.
    """
    queries = np.empty((batch.tokens, shape.heads, shape.padded_dim), np.uint16)
    owners, positions = batch.owners, batch.positions
    probe = _probe(shape, run, batch)
    probe.qkv, probe.queries, probe.cache = _address(qkv), _address(queries), _address(cache)
    probe.cos, probe.sin = _address(cos), _address(sin)
    probe.q_norm, probe.k_norm = _address(q_norm), _address(k_norm)
    probe.owners, probe.positions = _address(owners), _address(positions)
    _check(library().tg_probe_rope_kv(ctypes.byref(probe)), run)
    return queries


def attend(shape: Shape, batch: Batch, run: Run, queries: Bits, cache: Bytes, memory: Bytes) -> Floats:
    """softmax(scale * q kᵀ) v of queries [T, heads, padded dim] → [T, heads * head_dim].

    `memory` is `scratch(shape, run.ranks)`. Raises `Unavailable` for a level that this machine lacks.
    """
    out = np.empty((batch.tokens, shape.heads * shape.head_dim), np.float32)
    attend_into(out, shape, batch, run, queries, cache, memory)
    return out


def attend_into(out: Floats, shape: Shape, batch: Batch, run: Run, queries: Bits, cache: Bytes, memory: Bytes) -> int:
    """The same into `out`: nanoseconds of processor time that this thread took."""
    probe = _probe(shape, run, batch)
    probe.queries, probe.cache = _address(queries), _address(cache)
    probe.scratch, probe.out = _address(memory), _address(out)
    native = library().tg_probe_attend
    native.restype = ctypes.c_int64
    spent = int(native(ctypes.byref(probe)))
    _check(min(spent, 0), run)
    return spent


def shares(shape: Shape, batch: Batch, ranks: int) -> list[int]:
    """Pairs of a row and a key that each rank attends to."""
    probe = _probe(shape, Run(level=0, ranks=ranks), batch)
    native = library().tg_probe_attention_share
    native.restype = ctypes.c_int64
    return [native(ctypes.byref(probe), ctypes.c_int32(rank)) for rank in range(ranks)]


def _probe(shape: Shape, run: Run, batch: Batch | None = None) -> _Probe:
    probe = _Probe(
        level=run.level,
        ranks=run.ranks,
        threads=run.threads,
        combine=run.combine,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rope_dim=shape.rope_dim,
        kv_format=shape.int8,
        block_size=shape.block_size,
        blocks=shape.blocks,
        window=shape.window,
        scale=shape.scale,
        eps=shape.eps,
    )
    if batch is not None:
        probe.tokens, probe.sequences, probe.table_width = batch.tokens, len(batch.seq_lens), batch.tables.shape[1]
        probe.query_starts, probe.seq_lens = _address(batch.query_starts), _address(batch.seq_lens)
        probe.table_rows, probe.tables = _address(batch.table_rows), _address(batch.tables)
    return probe


def _address(array: Floats | Ints | Bits | Bytes | None) -> int | None:
    if array is None:
        return None
    assert array.flags.c_contiguous
    return array.ctypes.data


def _check(status: int, run: Run) -> None:
    if status:
        raise Unavailable(f"there is no attention kernel of level {run.level} on this machine")
