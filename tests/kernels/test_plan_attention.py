"""Grouping of sequences for attention: a pure decision, and what it promises."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergate.kernels import paged_attention, plan_attention
from tiergate.kernels.cases import Case, Draw
from tiergate.kernels.ops.paged_attention import inputs
from tiergate.kernels.ops.plan_attention import _CHUNK, _FULL, _WASTE, group_sequences

lengths = st.lists(
    st.tuples(st.sampled_from([0, 1, 1, 1, 2, 5, 40]), st.integers(0, 3000)).map(lambda x: (x[0], x[0] + x[1])),
    max_size=40,
)


@given(lengths, st.sampled_from([0, 1, 100]))
def test_every_sequence_is_in_one_group_of_its_like(pairs: list[tuple[int, int]], window: int) -> None:
    queries, contexts = tuple(q for q, _ in pairs), tuple(c for _, c in pairs)
    groups = group_sequences(queries, contexts, window)
    assert sorted(index for group in groups for index in group) == [i for i, count in enumerate(queries) if count]
    for group in groups:
        assert list(group) == sorted(group)
        assert len({queries[index] for index in group}) == 1
        count = queries[group[0]]
        keys = [min(contexts[i], window + count - 1) if window else contexts[i] for i in group]
        if len(group) > 1:
            assert count < _CHUNK
            assert max(keys) * len(group) - sum(keys) <= _WASTE
            assert max(keys) * len(group) <= _FULL


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 40)), min_size=1, max_size=8),
    st.sampled_from([0, 1, 7]),
    st.sampled_from([1, 4, 16]),
    st.randoms(use_true_random=False),
)
def test_a_sequence_does_not_see_its_neighbours(
    shape: list[tuple[int, int]], window: int, block: int, random: object
) -> None:
    """Each sequence of a batch equals the same sequence planned alone, whatever the grouping does."""
    torch.set_num_threads(1)
    queries, contexts = tuple(q for q, _ in shape), tuple(q + past for q, past in shape)
    case = Case(name="drawn", queries=queries, contexts=contexts, window=window, block=block)
    (q, cache, plan, scale), _ = inputs(case, Draw(torch.float32, seed=sum(contexts)))
    together = paged_attention(q, cache, plan, scale)
    assert together.isfinite().all()
    for index, (count, context) in enumerate(zip(queries, contexts, strict=True)):
        rows = slice(*plan.query_starts[index : index + 2].tolist())
        solo = plan_attention(
            plan.block_tables[index : index + 1],
            torch.tensor([0, count], dtype=torch.int32),
            plan.seq_lens[index : index + 1],
            query_lens=(count,),
            context_lens=(context,),
            block_size=block,
            window=window,
            dtype=torch.float32,
        )
        torch.testing.assert_close(paged_attention(q[rows], cache, solo, scale), together[rows], rtol=1e-5, atol=1e-5)
