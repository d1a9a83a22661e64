"""The flat memory of a lane's native steps: the lane fills it in, a `StepRunner` reads it and writes what it drew.

Made once a lane and used by every step, so that neither side allocates or converts anything. The arrays mirror `TgStep`
of the CPU core's C interface, field by field and under the same names; `kernels/cpu/abi.h` has their contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Records = npt.NDArray[np.void]
"""A structured array."""

NUMERIC = -1
"""In place of a drawn token: the row has a NaN or +inf, or no token left with a logit above -inf."""
TOP_LOGPROBS = 32
"""Most log-probabilities of rivals that a row can bring back."""
STOPS_A_SEQUENCE = 64
"""Room for stops, on average."""

SAMPLING = np.dtype(
    [
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("top_k", np.int32),
        ("seed", np.uint64),
        ("position", np.int64),
        ("edit_count", np.int32),
        ("ban_count", np.int32),
        ("edit_ids", np.uint64),
        ("edit_scales", np.uint64),
        ("edit_adds", np.uint64),
        ("ban_ids", np.uint64),
        ("logprobs", np.int32),
        ("forced", np.int32),
    ],
    align=True,
)
"""`TgSampling`; pointers are addresses of int32 or float32 arrays, which whoever wrote them keeps alive."""

CHOSEN = np.dtype(
    [
        ("token", np.int32),
        ("logprob", np.float32),
        ("entropy", np.float32),
        ("margin", np.float32),
        ("top_count", np.int32),
        ("top_ids", np.int32, (TOP_LOGPROBS,)),
        ("top_logprobs", np.float32, (TOP_LOGPROBS,)),
    ],
    align=True,
)
"""`TgChosen`."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepBuffers:
    """Arrays of fixed size and address. A step of T tokens, S sequences and R rows uses the beginning of each."""

    token_ids: Int32s
    """[max_tokens]."""
    positions: Int32s
    """[max_tokens], from 0."""
    query_starts: Int32s
    """[max_sequences + 1], first row of each sequence; entry S is T."""
    seq_lens: Int32s
    """[max_sequences], tokens in the cache once the step has written its own."""
    table_rows: Int32s
    """[max_sequences], row of `tables` of each sequence."""
    tables: Int32s
    """[rows, width] block ids, C-contiguous."""
    logit_rows: Int32s
    """[max_tokens], rows of which a token is drawn, ascending; R of them."""
    sampling: Records
    """`SAMPLING` [max_tokens], for each of the R rows. Step i of a repeat draws at `position` + i."""
    chosen: Records
    """`CHOSEN` [max(max_tokens, max_repeat * max_sequences)]; row r of step i of a repeat is at i * R + r."""
    stop_starts: Int32s
    """[max_sequences + 1] into `stop_ids`; read when a step is repeated."""
    stop_ids: Int32s
    """[STOPS_A_SEQUENCE * max_sequences]."""
    max_repeat: int
    experts: Int32s | None = None
    """[max_tokens], active experts of each token; None: the layers' own number for all."""

    @property
    def max_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def max_sequences(self) -> int:
        return len(self.seq_lens)


def make_buffers(tables: Int32s, *, max_tokens: int, max_repeat: int) -> StepBuffers:
    """Buffers over the block tables `tables`, a row of which every running sequence has."""
    sequences = len(tables)

    def zeros(length: int, dtype: Any = np.int32) -> npt.NDArray[Any]:
        return np.zeros(length, dtype)

    return StepBuffers(
        token_ids=zeros(max_tokens),
        positions=zeros(max_tokens),
        query_starts=zeros(sequences + 1),
        seq_lens=zeros(sequences),
        table_rows=zeros(sequences),
        tables=tables,
        logit_rows=zeros(max_tokens),
        sampling=zeros(max_tokens, SAMPLING),
        chosen=zeros(max(max_tokens, max_repeat * sequences), CHOSEN),
        stop_starts=zeros(sequences + 1),
        stop_ids=zeros(STOPS_A_SEQUENCE * sequences),
        max_repeat=max_repeat,
    )
