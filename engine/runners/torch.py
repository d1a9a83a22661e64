"""Runs a lane with PyTorch: the ops of `kernels` called from Python, on any device that PyTorch has."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from ..batch import ForwardBatch, ModelFacts
from ..config import LaneConfig
from ..decoder import Decoder
from ..kv_cache import KVCache, kv_bytes_per_token
from ..lane_size import size_lane
from ..loader import load_weights, read_spec
from ..packed_cache import fingerprint


class TorchRunner:
    """Owns weights and KV tensors of one lane."""

    def __init__(self, decoder: Decoder, cache: KVCache, facts: ModelFacts, logits: torch.Tensor) -> None:
        self._decoder = decoder
        self._cache = cache
        self._pages = tuple(layer.flatten(1).view(torch.uint8) for layer in cache.layers)
        """uint8 [blocks, bytes of a block] of each layer."""
        self.kv_block_bytes = sum(pages.shape[1] for pages in self._pages)
        self._logits = logits
        self.facts = facts
        self.blocks, self.block_size = cache.layers[0].shape[:2]

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """See `Runner.forward`. Up to `max_sequences` rows of logits live in a buffer that the next call reuses."""
        fits = len(batch.logit_rows) <= len(self._logits)
        placed = place(batch, self._logits.device)
        return self._decoder.forward(placed, self._cache, self._logits if fits else None)

    @torch.inference_mode()
    def read_block(self, block: int) -> bytes:
        """See `BlockMemory`."""
        data: bytes = torch.cat([pages[block] for pages in self._pages]).cpu().numpy().tobytes()
        return data

    @torch.inference_mode()
    def write_block(self, block: int, data: bytes) -> None:
        """See `BlockMemory`."""
        source, at = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._pages[0].device), 0
        for pages in self._pages:
            end = at + pages.shape[1]
            pages[block].copy_(source[at:end])
            at = end


def place(batch: ForwardBatch, device: torch.device) -> ForwardBatch:
    """The batch with its tensors on `device`; the batch itself if that is the CPU, where batches are made."""
    if device.type == "cpu":
        return batch
    tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}
    moved: dict[str, Any] = {
        name: x.to(device, non_blocking=True) for name, x in tensors.items() if isinstance(x, torch.Tensor)
    }
    return replace(batch, **moved)


def open(config: LaneConfig, device: str) -> TorchRunner:
    """Load the model of `config` onto `device` (`cpu`, `cuda:0`) and lay out its KV cache. Raises `ModelError`.

    Integer precisions are the native core's; here they are bf16.
    """
    where, dtype = torch.device(device), torch.float32 if config.precision == "fp32" else torch.bfloat16
    folder = Path(config.model)
    spec = read_spec(folder)
    each = kv_bytes_per_token(spec, dtype)
    size = size_lane(config, spec, each, folder.name)
    with torch.inference_mode():
        decoder = Decoder(spec, load_weights(folder, spec, dtype, where), size.context)
        cache = KVCache(spec, blocks=size.blocks, block_size=config.block_size, dtype=dtype, device=where)
        logits = torch.empty((config.max_sequences, spec.vocab), dtype=torch.float32, device=where)
    precision = "fp32" if dtype is torch.float32 else "bf16"
    facts = ModelFacts(
        vocab=spec.vocab,
        context=size.context,
        eos=spec.eos,
        kv_bytes_per_token=each,
        experts=spec.experts,
        experts_per_token=spec.experts_per_token,
        precision=precision,
        weights=fingerprint(folder, precision),
    )
    return TorchRunner(decoder, cache, facts, logits)
