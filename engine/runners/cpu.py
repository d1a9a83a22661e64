"""Runs a lane on the native CPU core: a whole step in one call, the draw of tokens included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tiergate.kernels import KvFormat, NativeDecoder, Rotation, TgStep, ThreadPool, kernel_levels, kv_bytes

from ..batch import ForwardBatch, ModelFacts
from ..config import LaneConfig
from ..errors import ModelError
from ..lane_size import size_lane
from ..loader import read_spec
from ..models.spec import ModelSpec
from ..packed_cache import PackedCache, fingerprint
from ..packing import NativePrecision
from ..rope import frequencies
from ..step_buffers import StepBuffers

BLOCK_UNIT = 16
"""KV blocks hold a multiple of so many tokens."""
LARGEST_HEAD = 256
"""Dimensions of an attention head."""


DEFAULT_CACHE = PackedCache()


class Unsuited(ModelError):
    """The native core cannot serve a lane that PyTorch can."""


@dataclass(frozen=True, slots=True)
class NativeStep:
    """See `Step` of batch.py. The buffers' addresses are in the struct already; a call sets what changes."""

    _decoder: NativeDecoder
    _plan: TgStep
    _buffers: StepBuffers
    """Kept alive: the plan points into it."""

    def __call__(self, *, tokens: int, sequences: int, rows: int, repeat: int, wake: int) -> int:
        plan = self._plan
        plan.tokens = tokens
        plan.sequences = sequences
        plan.logit_count = rows
        plan.repeat = repeat
        plan.wake = wake
        return self._decoder.step(plan)


class NativeRunner:
    """Owns weights and KV memory of one lane; the threads are shared. Also a `StepRunner`."""

    def __init__(self, decoder: NativeDecoder, facts: ModelFacts, *, blocks: int, block_size: int, rows: int) -> None:
        """`rows` of logits live in a buffer that the next `forward` reuses."""
        self._decoder = decoder
        self._pages = tuple(cache.numpy().reshape(blocks, -1) for cache in decoder.caches)
        """uint8 [blocks, bytes of a block] of each layer."""
        self.kv_block_bytes = sum(pages.shape[1] for pages in self._pages)
        self._logits = torch.empty((rows, decoder.vocab), dtype=torch.float32)
        self.facts = facts
        self.blocks = blocks
        self.block_size = block_size

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """See `Runner.forward`."""
        rows = len(batch.logit_rows)
        logits = self._logits[:rows] if rows <= len(self._logits) else torch.empty(rows, self._decoder.vocab)
        if not len(batch.token_ids):
            return logits
        flat = {
            "token_ids": _int32(batch.token_ids),
            "positions": _int32(batch.positions),
            "query_starts": _int32(batch.query_starts),
            "seq_lens": _int32(batch.seq_lens),
            "table_rows": np.arange(len(batch.seq_lens), dtype=np.int32),
            "tables": _int32(batch.block_tables),
            "logit_rows": _int32(batch.logit_rows),
        }
        plan = TgStep(
            tokens=len(batch.token_ids),
            sequences=len(batch.seq_lens),
            logit_count=rows,
            repeat=1,
            wake=-1,
            logits=logits.data_ptr(),
        )
        plan.table_count, plan.table_width = batch.block_tables.shape
        for name, array in flat.items():
            setattr(plan, name, array.ctypes.data)
        experts = None if batch.experts is None else _int32(batch.experts)
        plan.experts = None if experts is None else experts.ctypes.data
        self._decoder.step(plan)
        return logits

    def read_block(self, block: int) -> bytes:
        """See `BlockMemory`."""
        return b"".join([pages[block].tobytes() for pages in self._pages])

    def write_block(self, block: int, data: bytes) -> None:
        """See `BlockMemory`."""
        source, at = np.frombuffer(data, np.uint8), 0
        for pages in self._pages:
            end = at + pages.shape[1]
            pages[block] = source[at:end]
            at = end

    def bind(self, buffers: StepBuffers) -> NativeStep:
        """See `StepRunner.bind`. Raises ValueError for buffers of more tokens than the lane was opened for."""
        if buffers.max_tokens > self._decoder.max_tokens:
            raise ValueError(f"steps of up to {buffers.max_tokens} tokens, the runner has {self._decoder.max_tokens}")
        plan = TgStep()
        for name in (
            "token_ids", "positions", "query_starts", "seq_lens", "table_rows", "tables", "logit_rows", "sampling",
            "chosen", "stop_starts", "stop_ids",
        ):  # fmt: skip
            setattr(plan, name, getattr(buffers, name).ctypes.data)
        plan.table_count, plan.table_width = buffers.tables.shape
        plan.experts = None if buffers.experts is None else buffers.experts.ctypes.data
        return NativeStep(self._decoder, plan, buffers)


def open(
    config: LaneConfig, pool: ThreadPool, *, levels: Sequence[int] | None = None, cache: PackedCache = DEFAULT_CACHE
) -> NativeRunner:
    """Load the model of `config`, packed, and lay out its KV cache; `levels` caps those of the kernels.

    Raises `ModelError`: `Unsuited` where PyTorch could serve the lane.
    """
    check(config)
    folder = Path(config.model)
    spec = read_spec(folder)
    if (dim := max(layer.attention.head_dim for layer in spec.layers)) > LARGEST_HEAD:
        raise Unsuited(f"its heads have {LARGEST_HEAD} dimensions at most, not {dim}")
    kv_format = KvFormat.INT8 if config.kv_precision == "int8" else KvFormat.BF16
    precision: NativePrecision = "bf16"
    if config.precision == "int8" or config.precision == "int4":
        precision = config.precision
    each = _kv_bytes_per_token(spec, kv_format, config.block_size)
    size = size_lane(config, spec, each, folder.name)
    with torch.inference_mode():
        model = cache.load(folder, spec, precision)
        rotation = Rotation(frequencies(spec.rope, size.context), spec.rope.attention_factor)
        decoder = NativeDecoder(
            model, rotation, pool, kv_format=kv_format, blocks=size.blocks, block_size=config.block_size,
            max_tokens=config.max_batch_tokens, levels=levels,
        )  # fmt: skip
    facts = ModelFacts(
        vocab=spec.vocab,
        context=size.context,
        eos=spec.eos,
        kv_bytes_per_token=each,
        experts=spec.experts,
        experts_per_token=spec.experts_per_token,
        precision=precision,
        kernels=kernel_levels(levels),
        threads=pool.threads,
        weights=fingerprint(folder, precision),
    )
    return NativeRunner(decoder, facts, blocks=size.blocks, block_size=config.block_size, rows=config.max_sequences)


def check(config: LaneConfig) -> None:
    """Raises `Unsuited` for what the native core lacks, as far as the config tells."""
    if config.precision == "fp32":
        raise Unsuited("it has no fp32")
    if config.block_size % BLOCK_UNIT:
        raise Unsuited(f"its KV blocks hold a multiple of {BLOCK_UNIT} tokens, not {config.block_size}")


def _kv_bytes_per_token(spec: ModelSpec, kv_format: KvFormat, block_size: int) -> int:
    block = sum(
        kv_bytes(kv_format, 1, block_size, layer.attention.kv_heads, layer.attention.head_dim) for layer in spec.layers
    )
    return -(-block // block_size)


def _int32(tensor: torch.Tensor) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(tensor.numpy(), np.int32)
