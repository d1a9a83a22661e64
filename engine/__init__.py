"""Turns token ids into token ids, many sequences on several models at once, in its own process."""

from . import messages
from .config import EngineConfig, LaneConfig
from .errors import EngineBusy, EngineDead, EngineError, ModelError, RequestRejected, SequenceFailed
from .launch import EngineProcess, launch
from .messages import SamplingParams, ThinkLimit

__all__ = [
    "EngineBusy",
    "EngineConfig",
    "EngineDead",
    "EngineError",
    "EngineProcess",
    "LaneConfig",
    "ModelError",
    "RequestRejected",
    "SamplingParams",
    "SequenceFailed",
    "ThinkLimit",
    "launch",
    "messages",
]
