"""Host-side planning of a step's attention, done once and used by every layer with the same window."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..dispatch import op

_WASTE = 512
"""Padded key rows that cost about as much as one more attention call."""

_FULL = 4096
"""Key rows of a group: about what a core's cache holds between their gathering and their use."""

_CHUNK = 16
"""Query rows from which a sequence fills the machine alone."""


@dataclass(frozen=True, slots=True)
class Span:
    """Sequences that are attended to together: equally many query rows each, keys padded to a common length."""

    rows: torch.Tensor | None
    """int64 [sequences * queries], their rows in the batch; None: all rows of the batch, in order."""
    sequences: int
    queries: int
    slots: torch.Tensor
    """int64 [sequences * keys], cache slots of their keys; padding repeats a slot of the same sequence."""
    keys: int
    causal: bool
    """Query i sees keys 0..i and nothing else masks (a whole prompt at once)."""
    mask: torch.Tensor | None
    """Additive, [sequences, 1, queries or 1, keys]; None if every query sees every key, or `causal`."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The rows of a step as `paged_attention` wants them."""

    query_starts: torch.Tensor
    """int32 [S + 1]."""
    seq_lens: torch.Tensor
    """int32 [S]."""
    block_tables: torch.Tensor
    """int32 [S, B]."""
    window: int
    """A query sees only this many latest keys, its own included; 0: all."""
    spans: tuple[Span, ...] = ()
    """The reference's own grouping; other implementations leave it empty."""


@op
def plan_attention(
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    block_size: int,
    window: int = 0,
    dtype: torch.dtype,
) -> AttentionPlan:
    """Group the sequences of a step for `paged_attention`.

    block_tables int32 [S, B], query_starts int32 [S + 1], seq_lens int32 [S] with their lengths as Python ints in
    `query_lens` and `context_lens` (each at least its query length). Table entries behind a sequence's last block are
    never used. `dtype` is that of the queries.
    """
    starts = [0]
    for length in query_lens:
        starts.append(starts[-1] + length)
    spans = tuple(
        _span(group, starts, block_tables, query_lens, context_lens, block_size, window, dtype)
        for group in group_sequences(query_lens, context_lens, window)
    )
    return AttentionPlan(query_starts, seq_lens, block_tables, window, spans)


def group_sequences(
    query_lens: tuple[int, ...], context_lens: tuple[int, ...], window: int = 0
) -> list[tuple[int, ...]]:
    """Indices of the sequences to attend to together, each group of one query length and of similar key counts.

    Padding a sequence to its group's longest costs time, so does another call: a group closes when its padding would
    outgrow `_WASTE` key rows, or its keys `_FULL`. Sequences without query rows are in no group, a prefill chunk is
    always alone.
    """
    groups: list[tuple[int, ...]] = []
    by_queries: dict[int, list[int]] = {}
    for index, queries in enumerate(query_lens):
        if queries:
            by_queries.setdefault(queries, []).append(index)
    for queries, members in by_queries.items():
        if queries >= _CHUNK:
            groups.extend((index,) for index in members)
            continue
        members.sort(key=lambda index: -_keys(query_lens[index], context_lens[index], window))
        group: list[int] = []
        longest = waste = 0
        for index in members:
            keys = _keys(queries, context_lens[index], window)
            if group and (waste + longest - keys > _WASTE or longest * (len(group) + 1) > _FULL):
                groups.append(tuple(sorted(group)))
                group, waste = [], 0
            if not group:
                longest = keys
            waste += longest - keys
            group.append(index)
        groups.append(tuple(sorted(group)))
    return groups


def _keys(queries: int, context: int, window: int) -> int:
    """Keys that some query of the sequence can see."""
    return min(context, window + queries - 1) if window else context


def _span(
    group: tuple[int, ...],
    starts: list[int],
    block_tables: torch.Tensor,
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    block_size: int,
    window: int,
    dtype: torch.dtype,
) -> Span:
    device = block_tables.device
    queries = query_lens[group[0]]
    counts = [_keys(queries, context_lens[index], window) for index in group]
    keys = max(counts)
    contexts = torch.tensor([context_lens[index] for index in group], device=device)[:, None]
    first = contexts - torch.tensor(counts, device=device)[:, None]
    # Padded positions are clamped into the sequence, so that whatever other slots hold can never leak into it.
    positions = (first + torch.arange(keys, device=device)).minimum(contexts - 1)
    tables = block_tables if len(group) == len(query_lens) else block_tables[list(group)]
    slots = tables.long().gather(1, positions // block_size) * block_size + positions % block_size

    everything = len(group) == len(query_lens)
    rows = None
    if not everything:
        base = torch.tensor([starts[index] for index in group], device=device)[:, None]
        rows = (base + torch.arange(queries, device=device)).flatten()

    causal = len(group) == 1 and queries == keys and not (window and window < queries)
    mask = None
    if not causal and (queries > 1 or min(counts) < keys):
        mask = _mask(contexts, first, queries, keys, window, dtype)
    return Span(rows, len(group), queries, slots.flatten(), keys, causal and queries > 1, mask)


def _mask(
    contexts: torch.Tensor, first: torch.Tensor, queries: int, keys: int, window: int, dtype: torch.dtype
) -> torch.Tensor:
    """Additive mask [sequences, 1, queries, keys]: 0 where query and key meet, -inf elsewhere."""
    device = contexts.device
    query = (contexts - queries + torch.arange(queries, device=device))[:, :, None]
    key = (first + torch.arange(keys, device=device))[:, None, :]
    hidden = key > query
    if window:
        hidden |= key <= query - window
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)[:, None]
