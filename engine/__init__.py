"""Turns token ids into token ids, many sequences on several models at once, in its own process."""

from . import messages
from .checked import PrecisionCheck, check_model, choose_precision
from .config import EngineConfig, LaneConfig
from .convert import ModelSummary, Progress, Respell, Silent, convert_gguf, inspect_model, upcycle
from .errors import EngineBusy, EngineDead, EngineError, ModelError, RequestRejected, SequenceFailed
from .launch import EngineProcess, describe_kernels, launch
from .messages import SamplingParams, ThinkLimit

__all__ = [
    "EngineBusy",
    "EngineConfig",
    "EngineDead",
    "EngineError",
    "EngineProcess",
    "LaneConfig",
    "ModelError",
    "ModelSummary",
    "PrecisionCheck",
    "Progress",
    "RequestRejected",
    "Respell",
    "SamplingParams",
    "SequenceFailed",
    "Silent",
    "ThinkLimit",
    "check_model",
    "choose_precision",
    "convert_gguf",
    "describe_kernels",
    "inspect_model",
    "launch",
    "messages",
    "upcycle",
]
