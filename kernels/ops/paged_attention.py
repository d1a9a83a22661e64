"""Attention of a step's query rows over the paged cache, prefill chunks and decode rows alike."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..dispatch import op
from .plan_attention import AttentionPlan, Span


@op
def paged_attention(q: torch.Tensor, cache: torch.Tensor, plan: AttentionPlan, scale: float) -> torch.Tensor:
    """softmax(scale * q kᵀ) v for each row over its own sequence, causal, within the plan's window → [T, H * D].

    q [T, H, D]; cache [blocks, block_size, 2, K, D] with H a multiple of K (query head h reads key head h // (H / K));
    the step's own keys and values are in the cache already. Softmax in float32. Slots that belong to no position of a
    sequence never influence it, whatever they hold, NaN included.
    """
    heads, dim = q.shape[1:]
    kv_heads = cache.shape[3]
    store = cache.view(-1, 2 * kv_heads * dim)
    out = q.new_empty((q.shape[0], heads * dim))
    for span in plan.spans:
        if span.rows is None:
            return _attend(q, store, span, kv_heads, scale)
        out.index_copy_(0, span.rows, _attend(q.index_select(0, span.rows), store, span, kv_heads, scale))
    return out


def _attend(q: torch.Tensor, store: torch.Tensor, span: Span, kv_heads: int, scale: float) -> torch.Tensor:
    """q [sequences * queries, H, D] over one span → the same rows [.., H * D]."""
    heads, dim = q.shape[1:]
    kv = store.index_select(0, span.slots).view(span.sequences, span.keys, 2, kv_heads, dim)
    k, v = kv[:, :, 0].transpose(1, 2), kv[:, :, 1].transpose(1, 2)
    if span.queries == 1:
        # The query heads that share a key head become its query rows: one read of the keys serves them all.
        q = q.reshape(span.sequences, kv_heads, heads // kv_heads, dim)
        return F.scaled_dot_product_attention(q, k, v, span.mask, scale=scale).reshape(-1, heads * dim)
    q = q.reshape(span.sequences, span.queries, heads, dim).transpose(1, 2)
    out = F.scaled_dot_product_attention(
        q, k, v, span.mask, is_causal=span.causal, scale=scale, enable_gqa=heads != kv_heads
    )
    return out.transpose(1, 2).reshape(-1, heads * dim)
