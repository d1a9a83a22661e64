"""Rows of the embedding table."""

from __future__ import annotations

import torch

from ..dispatch import op


@op
def embedding(token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Look up `token_ids` int64 [T] in `table` [vocab, hidden] → [T, hidden], the table's dtype.

    Ids outside the table are the caller's mistake (IndexError on the CPU).
    """
    return table.index_select(0, token_ids)
