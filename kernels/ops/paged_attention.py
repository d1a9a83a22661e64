"""Attention of a step's query rows over the paged cache, prefill chunks and decode rows alike."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..cases import Call, Case, Draw, Tolerance
from ..dispatch import op
from .plan_attention import AttentionPlan, Span, plan_attention


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
    q = q.reshape(span.sequences, span.queries, heads, dim).transpose(1, 2)
    out = F.scaled_dot_product_attention(
        q, k, v, span.mask, is_causal=span.causal, scale=scale, enable_gqa=heads != kv_heads
    )
    return out.transpose(1, 2).reshape(-1, heads * dim)


CASES = (
    Case(name="none"),
    Case(name="first-token", queries=(1,), contexts=(1,)),
    Case(name="whole-prompt", queries=(13,), contexts=(13,)),
    Case(name="long-prompt", queries=(70,), contexts=(70,), heads=9, kv_heads=3, dim=64, block=16),
    Case(name="chunk", queries=(7,), contexts=(31,)),
    Case(name="decode", queries=(1, 1, 1, 1), contexts=(5, 9, 4, 33), heads=6, kv_heads=1),
    Case(name="decode-far-apart", queries=(1,) * 5, contexts=(3, 900, 17, 650, 2), heads=3, kv_heads=3, block=16),
    Case(name="mixed", queries=(1, 20, 3, 1, 3, 17), contexts=(40, 20, 3, 8, 22, 60)),
    Case(name="window", queries=(1, 20, 3, 1, 9), contexts=(40, 20, 30, 4, 15), window=6),
    Case(name="window-of-one", queries=(1, 5), contexts=(9, 12), window=1),
    Case(name="strided", queries=(2, 1, 1), contexts=(2, 6, 11), dim=10, strided=True),
)
TOLERANCE = {torch.float32: Tolerance(1e-5, 1e-5), torch.bfloat16: Tolerance(0.02, 0.02)}


def inputs(case: Case, draw: Draw) -> Call:
    """Sequences of `queries` new rows and `contexts` tokens in shuffled blocks; all other slots hold NaN."""
    needed = [-(-context // case.block) for context in case.contexts]
    order = draw.distinct(sum(needed) + 2, sum(needed) + 2)
    # Two blocks belong to nobody, block 0 among them, which is also what tables are padded with.
    blocks = order[order > 0][: sum(needed)]
    cache = draw.normal(sum(needed) + 2, case.block, 2, case.kv_heads, case.dim)
    tables = torch.zeros((len(needed), max(needed, default=0)), dtype=torch.int32, device=draw.device)
    owned = torch.zeros(cache.shape[:2], dtype=torch.bool, device=draw.device)
    for index, (mine, context) in enumerate(zip(torch.split(blocks, needed), case.contexts, strict=True)):
        tables[index, : len(mine)] = mine
        owned.view(-1)[
            (mine[:, None] * case.block + torch.arange(case.block, device=draw.device)).flatten()[:context]
        ] = True
    cache[~owned] = torch.nan
    starts = torch.tensor([0, *case.queries], device=draw.device).cumsum(0).int()
    plan = plan_attention(
        tables,
        starts,
        torch.tensor(case.contexts, dtype=torch.int32, device=draw.device),
        query_lens=case.queries,
        context_lens=case.contexts,
        block_size=case.block,
        window=case.window,
        dtype=draw.dtype,
    )
    q = draw.rows(sum(case.queries), case.heads * case.dim, strided=case.strided)
    return (q.view(-1, case.heads, case.dim), cache, plan, 0.9 * case.dim**-0.5), {}
