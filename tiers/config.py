"""What a tier is, as configuration says it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Precision = Literal["auto", "bf16", "int8", "int4", "fp32"]
KvPrecision = Literal["auto", "bf16", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingSpec:
    """How a tier's model thinks. Empty strings are filled from the model folder's `tiergate.json`."""

    enabled: bool = False
    """The tier thinks first unless a request says otherwise."""
    opener: str = ""
    """The marker that begins a thought."""
    closer: str = ""
    """The marker that ends it."""
    handoff: str = ""
    """The sentence forced when a thought is cut, before the closer."""
    budget: int | None = None
    """Thinking tokens given when neither request nor tenant says anything; None takes the model folder's figure."""
    efforts: dict[str, int] = field(
        default_factory=lambda: {
            "none": 0,
            "minimal": 32,
            "low": 128,
            "medium": 512,
            "high": 2048,
            "xhigh": 8192,
            "max": 16384,
        }
    )
    """Effort level to thinking tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSpec:
    """One `[tiers.<name>]` table."""

    kind: str = "local"
    """Which module of `tiers/backends` serves it."""
    model: str = ""
    """A name from `tiergate models list`, or a path."""
    aliases: tuple[str, ...] = ()
    """Further model names under which clients may ask for this tier."""
    precision: Precision = "auto"
    """Of weights and activations; `auto` is what `tiergate models check` found best for the model, or bf16 before that.
    int8 and int4 read less memory a token and are less exact."""
    kv_precision: KvPrecision = "auto"
    """Of the KV cache: bf16 or int8, which holds nearly twice the tokens; `auto` is bf16."""
    kv_bytes: int = 1 << 30
    """Memory for its KV cache, bytes."""
    kv_host_bytes: int = 0
    """More memory for prompts' KV blocks that the cache has no room for any more, bytes; for engines on a GPU."""
    kv_disk_bytes: int = 0
    """Disk space for such blocks, bytes; what is there outlives a restart."""
    kv_disk_path: str = "~/.cache/tiergate/kv"
    """Folder for them. It holds keys and values of prompts: nobody else may be able to write there."""
    context: int = 0
    """Most tokens of prompt and answer; 0 takes the model's own limit."""
    max_sequences: int = 64
    """Most requests running at once; more wait."""
    max_batch_tokens: int = 512
    """Tokens of one step, of prompts and answers together."""
    max_waiting: int = 1024
    """Most requests waiting; more are turned away as busy."""
    weight: float = 1.0
    """Share of the machine against other tiers on the same engine."""
    max_tokens: int = 1024
    """The cap on generated tokens when the client names none."""
    temperature: float = 1.0
    """Sampling temperature when the client names none; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass when the client names none."""
    thinking: ThinkingSpec = field(default_factory=ThinkingSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """The engine process behind the local tiers."""

    address: str = ""
    """A running engine's ZeroMQ endpoint to join; empty starts an own one."""
    listen: str = ""
    """ZeroMQ endpoint that an own engine is to have, so that others can join it; empty picks a private one."""
    device: str = "cpu"
    """What the engine computes on."""
    threads: int = 0
    """Compute threads; 0 takes the cores this process may use."""
    restart_delay: float = 0.2
    """Seconds before a dead engine is started again; doubles at each death in a row, up to 30."""
