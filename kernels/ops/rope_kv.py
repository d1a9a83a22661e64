"""What happens to fresh queries, keys and values before attention: head norms, rotary embedding, the cache write."""

from __future__ import annotations

import torch

from ..cases import Call, Case, Draw, Tolerance
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

    qkv [T, (H + 2 K) * D]: H query heads, K key heads, K value heads, as one packed projection gives them. It is used
    up: the result may lie in it.
    cos, sin [T, R]: `rope_angles` of each row; the first R of the D dimensions are rotated (rotate-half pairing).
    cache [blocks, block_size, 2, K, D]: one layer's paged cache, keys at index 0, values at 1; changed in place.
    slots int64 [T], distinct: block * block_size + offset of each row.
    q_norm, k_norm [D]: RMS norms of each head with `eps` before the rotation, where the model has them.
    Returns [T, H, D], qkv's dtype.
    """
    rows = qkv.shape[0]
    kv_heads, dim = cache.shape[3:]
    heads = qkv.shape[1] // dim - 2 * kv_heads
    qk = qkv[:, : (heads + kv_heads) * dim].view(rows, heads + kv_heads, dim)
    if q_norm is not None and k_norm is not None:
        qk[:, :heads] = rms_norm(qk[:, :heads], q_norm, eps)
        qk[:, heads:] = rms_norm(qk[:, heads:], k_norm, eps)
    _rotate(qk[..., : cos.shape[1]], cos[:, None], sin[:, None])
    # Keys and values lie side by side in the projection as in the cache: one copy stores both.
    cache.view(-1, 2 * kv_heads * dim).index_copy_(0, slots, qkv[:, heads * dim :])
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


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate x [T, heads, R] in place by cos and sin [T, 1, R]."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), -1)
    x.mul_(cos).addcmul_(swapped, sin)


CASES = (
    Case(name="none", rows=0),
    Case(name="one", rows=1, heads=9, kv_heads=3, dim=64),
    Case(name="head-norms", rows=11, on=True),
    Case(name="partial", rows=7, dim=24, rotary=8),
    Case(name="partial-normed", rows=7, dim=24, rotary=10, on=True),
    Case(name="strided", rows=13, heads=3, kv_heads=1, dim=10, strided=True),
)
TOLERANCE = {torch.float32: Tolerance(1e-5, 1e-5), torch.bfloat16: Tolerance(0.02, 0.02)}


def inputs(case: Case, draw: Draw) -> Call:
    """`rows` of packed heads into a cache of 9 blocks; `rotary` dimensions turn (0: all), `on` adds head norms."""
    qkv = draw.rows(case.rows, (case.heads + 2 * case.kv_heads) * case.dim, strided=case.strided)
    rotary = case.rotary or case.dim
    frequencies = 10.0 ** -torch.linspace(0, 3, rotary // 2, device=draw.device)
    cos, sin = rope_angles(draw.integers(0, 500, case.rows), frequencies, 1.1, draw.dtype)
    cache = draw.normal(9, case.block, 2, case.kv_heads, case.dim)
    norms = {"q_norm": draw.norm(case.dim), "k_norm": draw.norm(case.dim), "eps": 1e-6} if case.on else {}
    return (qkv, cos, sin, cache, draw.distinct(case.rows, 9 * case.block)), norms
