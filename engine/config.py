"""What an engine process is told at its start. Torch-free: the gateway builds it, the engine reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["auto", "bf16", "int8", "int4", "fp32"]
KvPrecision = Literal["auto", "bf16", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneConfig:
    """One model hosted by the engine, with its own scheduler, block pool and runner."""

    name: str
    model: str
    """Path of a Hugging Face style folder: config.json and safetensors."""
    precision: Precision = "auto"
    """Weights and activations; `auto` is bf16. int8 and int4 need the native CPU core: int8 activations with weights of
    int8 (a scale a row) or int4 (a scale and a minimum for 32 of a row); fp32 is PyTorch's alone."""
    kv_precision: KvPrecision = "auto"
    """Keys and values in the cache; `auto` is that of the activations, bf16. int8 needs the native CPU core."""
    block_size: int = 16
    """Tokens a KV block."""
    kv_bytes: int = 1 << 30
    """Memory for the KV cache, bytes; rounded down to whole blocks."""
    blocks: int = 0
    """Number of KV blocks outright; 0 derives it from `kv_bytes`."""
    context: int = 0
    """Most tokens a sequence may hold; 0 takes the model's own limit. Never more than the pool can hold."""
    max_sequences: int = 64
    """Most sequences running at once."""
    max_waiting: int = 1024
    """Most sequences waiting; beyond it a request fails as busy."""
    max_batch_tokens: int = 512
    """Token budget of a step: prefill chunks and decode rows together."""
    itl_target: float = 0.01
    """Seconds between two tokens of a stream that are always fine: what a prompt beside it may stretch a step to, or to
    between 1.3 and 1.9 times what it would take without, if that is more."""
    max_latency: float = 0.0
    """Seconds: a waiting sequence starts only while steps with it are predicted to stay within them; 0: no such limit.
    One always may."""
    weight: float = 1.0
    """Share of the machine relative to the other lanes, when they compete."""
    prefix_cache: bool = True
    kv_host_bytes: int = 0
    """Host memory for KV blocks that the cache has no room for any more, bytes."""
    kv_disk_bytes: int = 0
    """Disk space for those that host memory has no room for; they outlive the process."""
    kv_disk_path: str = "~/.cache/tiergate/kv"
    """Folder of that file, and of the secret under which its blocks are named. Nobody else may write there."""
    drafting: bool = True
    """Whether tokens may be guessed from a sequence's own text and verified several at a time, where the runner draws
    tokens itself. It changes no answer, and is done only while it is expected to pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine process: one device, one or more lanes."""

    lanes: tuple[LaneConfig, ...]
    address: str = ""
    """ZeroMQ endpoint to bind (`ipc://…`, `tcp://…`); empty picks a private ipc path."""
    device: str = "cpu"
    threads: int = 0
    """Compute threads; 0 takes the cores this process may use."""
    client_timeout: float = 15.0
    """Seconds of silence after which a client counts as gone and its sequences are aborted."""
