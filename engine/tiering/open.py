"""The tiers that a lane's configuration asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from ..batch import Runner
from ..config import LaneConfig
from .disk import DiskStore
from .saved import BlockMemory, BlockStore
from .secret import stored_secret
from .tiers import KvTiers

log = logging.getLogger(__name__)


def open_tiers(
    config: LaneConfig, runner: Runner, compute: Callable[[int, int], float | None], clock: Callable[[], float]
) -> KvTiers | None:
    """See `KvTiers` for `compute`. None where no tier is wanted, or none can be had; the log says why."""
    if not config.prefix_cache or not (config.kv_host_bytes or config.kv_disk_bytes):
        return None
    if not isinstance(runner, BlockMemory):
        log.warning("lane %s: its runner cannot move KV blocks, so they stay where they are", config.name)
        return None
    store = _open_store(config, runner, runner.block_size, runner.facts.weights)
    if store is None and not config.kv_host_bytes:
        return None
    return KvTiers(runner, config.kv_host_bytes, store, compute, clock)


def secret_of(config: LaneConfig) -> bytes | None:
    """What the lane's chains are to be hashed under, so that it finds its blocks again; None: anything.

    Raises `OSError` where the stored secret cannot be trusted.
    """
    return stored_secret(_path(config).with_suffix(".key")) if config.kv_disk_bytes and config.prefix_cache else None


def _open_store(config: LaneConfig, memory: BlockMemory, block_size: int, weights: str) -> BlockStore | None:
    if not config.kv_disk_bytes:
        return None
    try:
        return DiskStore(
            _path(config),
            origin=f"{weights}|{config.kv_precision}|{block_size}",
            block_bytes=memory.kv_block_bytes,
            ids_bytes=8 * block_size,
            budget=config.kv_disk_bytes,
        )
    except OSError as why:
        log.warning("lane %s: no KV blocks are kept on disk: %s", config.name, why)
        return None


def _path(config: LaneConfig) -> Path:
    return Path(config.kv_disk_path).expanduser() / f"{config.name}.kv"
