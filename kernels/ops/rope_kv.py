"""What happens to fresh queries, keys and values before attention: head norms, rotary embedding, the cache write."""

from __future__ import annotations

import torch

from ..dispatch import op
from .norm_linear import rms_norm


@op
def rope_kv(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Rotate queries and keys, write keys and values into the cache, return the queries.

    qkv [T, (H + 2 K) * D]: H query heads, K key heads, K value heads, as one packed projection gives them.
    cos, sin [T, R]: `rope_angles` of each row; the first R of the D dimensions are rotated (rotate-half pairing).
    cache [blocks, block_size, 2, K, D]: one layer's paged cache, keys at index 0, values at 1; changed in place.
    slots int64 [T], distinct: block * block_size + offset of each row.
    q_norm, k_norm [D]: RMS norms of each head with `eps` before the rotation, where the model has them.
    Returns [T, H, D], qkv's dtype.
    """
    rows = qkv.shape[0]
    kv_heads, dim = cache.shape[3:]
    heads = qkv.shape[1] // dim - 2 * kv_heads
    turned = heads + kv_heads
    qk = qkv[:, : turned * dim].view(rows, turned, dim)
    if q_norm is not None and k_norm is not None:
        qk = torch.cat((rms_norm(qk[:, :heads], q_norm, eps), rms_norm(qk[:, heads:], k_norm, eps)), 1)
    qk = _rotate(qk, cos, sin)
    store = cache.view(-1, 2, kv_heads, dim)
    store[:, 0].index_copy_(0, slots, qk[:, heads:])
    store[:, 1].index_copy_(0, slots, qkv[:, turned * dim :].view(rows, kv_heads, dim))
    return qk[:, :heads]


def rope_angles(
    positions: torch.Tensor, frequencies: torch.Tensor, scale: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [T, R] of positions int64 [T] at `frequencies` float32 [R / 2] (RoFormer, arXiv 2104.09864).

    Computed in float32, multiplied by `scale` and rounded to `dtype`. The first half of `sin` is negated, so that a
    rotation is x * cos + swap_halves(x) * sin.
    """
    angles = positions.float()[:, None] * frequencies
    cos, sin = angles.cos().mul_(scale), angles.sin().mul_(scale)
    return torch.cat((cos, cos), 1).to(dtype), torch.cat((-sin, sin), 1).to(dtype)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, heads, D] with its first R dimensions rotated."""
    width = cos.shape[1]
    half = width // 2
    cos, sin = cos[:, None], sin[:, None]
    swapped = torch.cat((x[..., half:width], x[..., :half]), -1)
    if width == x.shape[-1]:
        return (x * cos).add_(swapped.mul_(sin))
    return torch.cat(((x[..., :width] * cos).add_(swapped.mul_(sin)), x[..., width:]), -1)
