"""What one forward pass works on, and who carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch

from .step_buffers import StepBuffers


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """The rows of one step: T tokens of S sequences, each sequence's tokens contiguous and in order.

    A sequence's chunk may be a prefill piece, one decode row, or drafts to verify: all are "the next n tokens".
    """

    token_ids: torch.Tensor
    """int64 [T]."""
    positions: torch.Tensor
    """int64 [T], position of each token in its sequence, from 0."""
    slots: torch.Tensor
    """int64 [T], where its keys and values go: block id * block_size + offset."""
    query_starts: torch.Tensor
    """int32 [S + 1], first row of each sequence; the last entry is T."""
    seq_lens: torch.Tensor
    """int32 [S], tokens of the sequence in the cache once this step has written its own."""
    block_tables: torch.Tensor
    """int32 [S, B], block ids of each sequence in order, padded with 0."""
    logit_rows: torch.Tensor
    """int64 [R], rows whose logits are wanted, ascending."""
    query_lens: tuple[int, ...]
    """`query_starts` differences as Python ints, so that no kernel has to read a tensor back to plan its work."""
    context_lens: tuple[int, ...]
    """`seq_lens` as Python ints."""
    experts: torch.Tensor | None = None
    """int32 [T], active experts of each token; None means the model's own number for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the scheduler and the clients must know of a loaded model."""

    vocab: int
    context: int
    eos: tuple[int, ...]
    kv_bytes_per_token: int
    experts: int = 0
    experts_per_token: int = 0
    precision: str = "bf16"
    """Of the weights, as they are computed with."""
    kernels: Mapping[str, str] = field(default_factory=dict)
    """What runs the model: kernel to level of instruction sets, for reports. Empty where it is PyTorch."""
    threads: int = 0
    """Compute threads of the kernels; 0 where PyTorch has its own."""
    weights: str = ""
    """Names the state of the weights: another one's keys and values are of no use."""


class Runner(Protocol):
    """Owns weights and KV tensors of one lane. Called from the engine's only thread."""

    facts: ModelFacts
    blocks: int
    block_size: int

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Write the batch's keys and values into the cache and return logits, float32 [R, vocab].

        The tensor may be overwritten by the next call.
        """
        ...


class Step(Protocol):
    """Carries out a step whose arrays are in the buffers that it was bound to."""

    def __call__(self, *, tokens: int, sequences: int, rows: int, repeat: int, wake: int) -> int:
        """Run T `tokens` of S `sequences` and draw the next token of R `rows`; the number of steps done.

        With `repeat` above 1, each sequence has exactly one token and one row, and the tables have blocks for as many
        tokens more: what one step draws is what the next one reads. It ends early, behind a whole step, when a sequence
        draws one of its stops, a row is NUMERIC, or the file descriptor `wake` (-1: none) is readable.

        Behind it `chosen` has the rows of the steps done; `token_ids`, `positions` and `seq_lens` may have been moved
        on. Raises, before anything is written, for a step that its contract does not allow.
        """
        ...


@runtime_checkable
class StepRunner(Runner, Protocol):
    """A runner that also does whole steps, drawing included, on flat memory."""

    def bind(self, buffers: StepBuffers) -> Step:
        """Prepare for steps on these buffers; they outlive the `Step`. Done once a lane, and again after a failure.

        Rows draw by the rule of `tiergate.kernels.sample`; a row's token and statistics depend on nothing but its own
        sequence, so a step may be run again.
        """
        ...
