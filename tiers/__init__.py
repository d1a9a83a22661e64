"""Turns a `ChatRequest` into a stream of `Event`s, on one tier or a ladder of them."""

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
from .tier import Prompt, Tier, TierHealth
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
    "EFFORTS", "BadField", "BadPrompt", "Called", "ChatRequest", "ContextTooLong", "Effort", "EngineSpec", "Event",
    "Finish", "FinishReason", "GenerationFailed", "Message", "ModelMissing", "Prompt", "Sampling", "Start", "Text",
    "Think", "ThinkingSpec", "Tier", "TierError", "TierHealth", "TierSpec", "TierUnavailable", "TokenLogprob",
    "ToolCall", "ToolSpec", "UpstreamRefused", "Usage",
]  # fmt: skip
