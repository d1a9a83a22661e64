"""How long a lane's sequences may be, and how many KV blocks it has."""

from __future__ import annotations

from dataclasses import dataclass

from .config import LaneConfig
from .errors import ModelError
from .models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class LaneSize:
    context: int
    """Most tokens of a sequence: what was asked for or is the model's own, and no more than the blocks hold."""
    blocks: int


def size_lane(config: LaneConfig, spec: ModelSpec, bytes_per_token: int, name: str) -> LaneSize:
    """`name` is the model's, for complaints. Raises `ModelError` where the config asks for what cannot be."""
    limit = config.context or spec.context
    reach = int(spec.rope.max_position * spec.rope.factor) if spec.rope.kind == "dynamic" else spec.context
    if limit > reach:
        raise ModelError(f"{name}: a context of {limit} tokens was asked for, the model's own is {reach}")
    blocks = config.blocks or config.kv_bytes // (bytes_per_token * config.block_size)
    if blocks < 1:
        raise ModelError(
            f"{name}: {config.kv_bytes} bytes hold no KV block of {config.block_size} tokens of {bytes_per_token} bytes"
        )
    return LaneSize(min(limit, blocks * config.block_size), blocks)
