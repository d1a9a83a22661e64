"""Rows of the embedding table."""

from __future__ import annotations

import torch

from ..cases import Call, Case, Draw, Tolerance
from ..dispatch import op


@op
def embedding(token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Look up `token_ids` int64 [T] in `table` [vocab, hidden] → [T, hidden], the table's dtype.

    Ids outside the table are the caller's mistake (IndexError on the CPU).
    """
    return table.index_select(0, token_ids)


CASES = (
    Case(name="none", rows=0),
    Case(name="one", rows=1),
    Case(name="several", rows=37, hidden=33),
)
TOLERANCE = {torch.float32: Tolerance(0, 0), torch.bfloat16: Tolerance(0, 0)}


def inputs(case: Case, draw: Draw) -> Call:
    """`rows` ids of a table of 50 rows of `hidden`."""
    return (draw.integers(0, 50, case.rows), draw.normal(50, case.hidden)), {}
