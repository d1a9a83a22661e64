"""Sequences that go through the CPU core's attention step by step, and what should come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from tiergate.kernels.native_attention import (
    Batch,
    Bytes,
    Floats,
    Ints,
    Run,
    Shape,
    aligned,
    attend,
    cache_bytes,
    rope_kv,
)
from tiergate.kernels.native_attention import scratch as scratch_of

Step = Sequence[tuple[int, int]]
"""(sequence, new tokens) of one forward pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """Sequences with their projections, and block tables that scatter them over a cache full of garbage."""

    shape: Shape
    qkv: tuple[Floats, ...]
    """Of each sequence, [length, (heads + 2 kv_heads) * head_dim]."""
    tables: Ints
    """[sequences, blocks], padded with a block that belongs to nobody."""

    def cache(self) -> Bytes:
        """All bits set: NaN in bf16 and in scales."""
        memory = aligned(cache_bytes(self.shape))
        memory[:] = 0xFF
        return memory

    def play(self, run: Run, steps: Sequence[Step], cache: Bytes | None = None) -> list[Floats]:
        """Outputs of each sequence's tokens, in order, once all steps are done."""
        shape, cache = self.shape, self.cache() if cache is None else cache
        memory, done = scratch_of(shape, run.ranks), [0] * len(self.qkv)
        outputs: list[list[Floats]] = [[] for _ in self.qkv]
        for step in steps:
            starts = np.cumsum([0, *(count for _, count in step)], dtype=np.int32)
            rows = [self.qkv[s][done[s] : done[s] + count] for s, count in step]
            for s, count in step:
                done[s] += count
            members = np.array([s for s, _ in step], np.int32)
            batch = Batch(starts, np.array([done[s] for s in members], np.int32), members, self.tables)
            qkv = np.concatenate(rows) if rows else np.empty((0, self.qkv[0].shape[1]), np.float32)
            angles = np.zeros((batch.tokens, 0), np.float32)
            queries = rope_kv(shape, batch, run, qkv.copy(), cache, cos=angles, sin=angles)
            out = attend(shape, batch, run, queries, cache, memory)
            for index, (s, _) in enumerate(step):
                outputs[s].append(out[starts[index] : starts[index + 1]])
        return [np.concatenate(parts) for parts in outputs]

    def whole(self) -> list[Step]:
        """Everything in one step."""
        return [[(s, len(rows)) for s, rows in enumerate(self.qkv)]]

    def expected(self) -> list[Floats]:
        """Softmax attention in float32 of what the cache keeps of queries, keys and values."""
        return [self._expected(torch.from_numpy(rows)) for rows in self.qkv]

    def _expected(self, qkv: torch.Tensor) -> Floats:
        shape, length = self.shape, len(qkv)
        heads = qkv.view(length, -1, shape.head_dim).transpose(0, 1)
        q, k, v = torch.split(heads, [shape.heads, shape.kv_heads, shape.kv_heads])
        keep = _int8 if shape.int8 else _bf16
        at = torch.arange(length)
        seen = at[None] <= at[:, None]
        if shape.window:
            seen &= at[None] > at[:, None] - shape.window
        out = F.scaled_dot_product_attention(
            _bf16(q)[None], keep(k)[None], keep(v)[None], seen, scale=shape.scale, enable_gqa=True
        )
        return out[0].transpose(0, 1).reshape(length, -1).numpy()


def _bf16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def _int8(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale.clamp_min(1e-30)).round() * scale


def scene(shape: Shape, lengths: Sequence[int], seed: int = 0) -> Scene:
    """Random projections of sequences of these lengths; `shape.blocks` is set to what they need and two more."""
    generator = np.random.default_rng(seed)
    width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    qkv = tuple(generator.standard_normal((length, width), np.float32) * np.float32(1.5) for length in lengths)
    needed = [-(-length // shape.block_size) for length in lengths]
    blocks = generator.permutation(sum(needed) + 2).astype(np.int32)
    tables = np.full((len(lengths), max(needed, default=0) or 1), blocks[-1], np.int32)
    for row, count in enumerate(needed):
        start = sum(needed[:row])
        tables[row, :count] = blocks[start : start + count]
    return Scene(replace(shape, blocks=len(blocks)), qkv, tables)


def stored(shape: Shape, cache: Bytes, blocks: Ints, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [length, kv_heads, head_dim] of a sequence in float32, by the description in kv_layout.h."""
    dim, tokens, value = shape.padded_dim, 16, 1 if shape.int8 else 2
    part = tokens * dim * value
    page = 2 * part + (2 * tokens * 4 if shape.int8 else 0)
    pages = cache.reshape(shape.blocks, shape.kv_heads, shape.block_size // tokens, page)[blocks]
    pages = pages.transpose(0, 2, 1, 3).reshape(-1, shape.kv_heads, page)[: -(-length // tokens)]
    keys, values = np.ascontiguousarray(pages[..., :part]), np.ascontiguousarray(pages[..., part : 2 * part])
    if shape.int8:
        scales = np.ascontiguousarray(pages[..., 2 * part :]).view(np.float32).reshape(-1, shape.kv_heads, 2, tokens, 1)
        k = keys.view(np.int8).reshape(-1, shape.kv_heads, dim, tokens).swapaxes(2, 3) * scales[:, :, 0]
        v = values.view(np.int8).reshape(-1, shape.kv_heads, tokens, dim) * scales[:, :, 1]
    else:
        k = _wide(keys).reshape(-1, shape.kv_heads, dim // 2, tokens, 2).transpose(0, 1, 3, 2, 4)
        v = _wide(values).reshape(-1, shape.kv_heads, tokens // 2, dim, 2).swapaxes(3, 4)
    both = (x.reshape(-1, shape.kv_heads, tokens, dim).swapaxes(1, 2).reshape(-1, shape.kv_heads, dim) for x in (k, v))
    k, v = (x[:length, :, : shape.head_dim] for x in both)
    return torch.from_numpy(k.copy()), torch.from_numpy(v.copy())


def _wide(bits: Bytes) -> Floats:
    """bf16 by its bytes as float32."""
    return (bits.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def chunked(length: int, sizes: Sequence[int]) -> list[int]:
    """`length` cut into pieces of `sizes`, taken in turn."""
    pieces: list[int] = []
    while sum(pieces) < length:
        pieces.append(min(sizes[len(pieces) % len(sizes)], length - sum(pieces)))
    return pieces
