"""The keys and values of a lane: one paged tensor a layer."""

from __future__ import annotations

import torch

from .models.spec import ModelSpec


def kv_bytes_per_token(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Bytes that one token of context takes over all layers."""
    return sum(2 * layer.attention.kv_heads * layer.attention.head_dim for layer in spec.layers) * dtype.itemsize


class KVCache:
    """Paged storage, `blocks` blocks of `block_size` tokens. Who owns which block is the block pool's business.

    Keys and values of a token lie side by side, so that attention gathers both with one read. Memory is not cleared:
    attention reads no slot that its sequence has not written, and pages that no block has used cost nothing.
    """

    def __init__(
        self, spec: ModelSpec, *, blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layers = tuple(
            torch.empty(
                (blocks, block_size, 2, layer.attention.kv_heads, layer.attention.head_dim), dtype=dtype, device=device
            )
            for layer in spec.layers
        )
        """Each [blocks, block_size, 2, kv_heads, head_dim], keys at index 0 of the third axis, values at 1."""
