"""Turns a `ChatRequest` into a stream of `Event`s, on one tier or a ladder of them."""

from tiergate.engine import describe_kernels

from .cascade import Rung, run_cascade
from .catalog import Catalog
from .config import EngineSpec, ThinkingSpec, TierSpec
from .errors import (
    BadField,
    BadPrompt,
    ContextTooLong,
    GenerationFailed,
    ModelMissing,
    TierError,
    TierUnavailable,
    UpstreamRefused,
)
from .folder import ModelFolder
from .open import OpenTiers, open_tiers
from .tier import Answer, Prompt, Tier, TierHealth
from .types import (
    EFFORTS,
    Called,
    ChatRequest,
    Effort,
    Event,
    Finish,
    FinishReason,
    Message,
    Sampling,
    Start,
    Text,
    Think,
    TokenLogprob,
    ToolCall,
    ToolSpec,
    Usage,
)

__all__ = [
    "EFFORTS", "Answer", "BadField", "BadPrompt", "Called", "Catalog", "ChatRequest", "ContextTooLong", "Effort",
    "EngineSpec", "Event", "Finish", "FinishReason", "GenerationFailed", "Message", "ModelFolder", "ModelMissing",
    "OpenTiers", "Prompt", "Rung", "Sampling", "Start", "Text", "Think", "ThinkingSpec", "Tier", "TierError",
    "TierHealth", "TierSpec", "TierUnavailable", "TokenLogprob", "ToolCall", "ToolSpec", "UpstreamRefused", "Usage",
    "describe_kernels", "open_tiers", "run_cascade",
]  # fmt: skip
