"""A model without weights: its logits are a hash of the whole history that it reads back through the paged cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from tiergate.engine.batch import ForwardBatch, ModelFacts

Words = npt.NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_BASE = 0xD1342543DE82EF95


class FakeRunner:
    """A `Runner`. Slots never written hold noise, so that one wrong slot, table entry or position changes the output.

    `fault` sees each batch and the tokens that every sequence's history in it has, and may raise or spoil the logits.
    """

    def __init__(
        self,
        *,
        blocks: int = 32,
        block_size: int = 4,
        vocab: int = 64,
        context: int = 4096,
        eos: tuple[int, ...] = (0,),
        fault: Callable[[ForwardBatch, torch.Tensor], None] | None = None,
    ) -> None:
        self.facts = ModelFacts(vocab=vocab, context=context, eos=eos, kv_bytes_per_token=8, weights="fake")
        self.blocks = blocks
        self.block_size = block_size
        self.batches: list[ForwardBatch] = []
        self._fault = fault
        self._cache = np.random.default_rng(0).integers(1 << 62, size=blocks * block_size).astype(np.uint64)

    @property
    def kv_block_bytes(self) -> int:
        return 8 * self.block_size

    def read_block(self, block: int) -> bytes:
        return self._cache.reshape(self.blocks, -1)[block].tobytes()

    def write_block(self, block: int, data: bytes) -> None:
        self._cache.reshape(self.blocks, -1)[block] = np.frombuffer(data, np.uint64)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        self.batches.append(batch)
        self._cache[batch.slots.numpy()] = entries(batch.token_ids.numpy(), batch.positions.numpy())
        ends = batch.query_starts.numpy()[1:] - 1
        owners = np.searchsorted(ends, batch.logit_rows.numpy())
        logits = torch.empty((len(owners), self.facts.vocab), dtype=torch.float32)
        for r, (owner, row) in enumerate(zip(owners.tolist(), batch.logit_rows.tolist(), strict=True)):
            length = int(batch.positions[row]) + 1
            at = np.arange(length)
            table = batch.block_tables[owner].numpy()
            slots = table[at // self.block_size] * self.block_size + at % self.block_size
            logits[r] = torch.from_numpy(logits_of(self._cache[slots], self.facts.vocab))
        if self._fault is not None:
            self._fault(batch, logits)
        return logits


def entries(ids: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> Words:
    """uint64 [T], what the cache keeps of each token."""
    return _mix((ids.astype(np.uint64) << np.uint64(32)) + positions.astype(np.uint64))


def logits_of(history: Words, vocab: int) -> npt.NDArray[np.float32]:
    """float32 [vocab] in [-4, 4) from the entries of a whole history, in order."""
    powers = np.cumprod(np.full(len(history), _BASE, np.uint64))
    digest = np.array([(history * powers).sum(dtype=np.uint64)])
    words = _mix(digest + np.arange(vocab, dtype=np.uint64) * _ODD)
    return ((words >> np.uint64(40)).astype(np.float32) / np.float32(1 << 21)) - np.float32(4)


def naive_logits(ids: Sequence[int], vocab: int) -> npt.NDArray[np.float32]:
    """The same without any cache: float32 [vocab] behind the tokens `ids`."""
    return logits_of(entries(np.array(ids, np.int64), np.arange(len(ids))), vocab)


def _mix(x: Words) -> Words:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
