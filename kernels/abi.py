"""The structs and constants of `cpu/abi.h`, field by field and in its order."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64, c_uint64, c_void_p
from enum import IntEnum


class Kernel(IntEnum):
    """Kernels that have a level of their own."""

    LINEAR = 0
    ATTENTION = 1
    ROWS = 2
    SAMPLE = 3
    MOE = 4


class KvFormat(IntEnum):
    """How keys and values are cached."""

    BF16 = 0
    INT8 = 1
    """With a float32 scale a token and head."""


class StepFault(IntEnum):
    """Why a step was refused, or could not be run."""

    BAD_SHAPE = -1
    BAD_TOKEN = -2
    BAD_POSITION = -3
    BAD_TABLE = -4
    BAD_SAMPLING = -5
    NO_MEMORY = -6


class TgLinear(ctypes.Structure):
    _fields_ = (
        ("format", c_int32),
        ("group", c_int32),
        ("n", c_int32),
        ("k", c_int32),
        ("paired", c_int32),
        ("rotated", c_int32),
        ("data", c_void_p),
        ("bias", c_void_p),
    )


class TgLayer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", c_void_p),
        ("qkv", TgLinear),
        ("out", TgLinear),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("window", c_int32),
        ("scale", c_float),
        ("kind", c_int32),
        ("mlp_norm", c_void_p),
        ("gate_up", TgLinear),
        ("down", TgLinear),
        ("router", TgLinear),
        ("experts", c_int32),
        ("active", c_int32),
        ("renormalise", c_int32),
        ("reserved", c_int32),
        ("expert_gate_up", POINTER(TgLinear)),
        ("expert_down", POINTER(TgLinear)),
        ("kv", c_void_p),
    )


class TgModel(ctypes.Structure):
    _fields_ = (
        ("vocab", c_int32),
        ("hidden", c_int32),
        ("layer_count", c_int32),
        ("norm_eps", c_float),
        ("embedding", c_void_p),
        ("norm", c_void_p),
        ("head", TgLinear),
        ("layers", POINTER(TgLayer)),
        ("frequencies", c_void_p),
        ("rope_dim", c_int32),
        ("rope_scale", c_float),
        ("kv_format", c_int32),
        ("block_size", c_int32),
        ("blocks", c_int32),
        ("reserved", c_int32),
    )


class TgSampling(ctypes.Structure):
    _fields_ = (
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("top_k", c_int32),
        ("seed", c_uint64),
        ("position", c_int64),
        ("edit_count", c_int32),
        ("ban_count", c_int32),
        ("edit_ids", c_void_p),
        ("edit_scales", c_void_p),
        ("edit_adds", c_void_p),
        ("ban_ids", c_void_p),
        ("logprobs", c_int32),
        ("forced", c_int32),
    )


class TgChosen(ctypes.Structure):
    _fields_ = (
        ("token", c_int32),
        ("logprob", c_float),
        ("entropy", c_float),
        ("margin", c_float),
        ("top_count", c_int32),
        ("top_ids", c_int32 * 32),
        ("top_logprobs", c_float * 32),
    )


class TgStep(ctypes.Structure):
    _fields_ = (
        ("tokens", c_int32),
        ("sequences", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("query_starts", c_void_p),
        ("seq_lens", c_void_p),
        ("table_rows", c_void_p),
        ("tables", c_void_p),
        ("table_count", c_int32),
        ("table_width", c_int32),
        ("logit_count", c_int32),
        ("reserved", c_int32),
        ("logit_rows", c_void_p),
        ("experts", c_void_p),
        ("logits", c_void_p),
        ("sampling", c_void_p),
        ("chosen", c_void_p),
        ("repeat", c_int32),
        ("wake", c_int32),
        ("stop_starts", c_void_p),
        ("stop_ids", c_void_p),
    )


DENSE, MOE = 0, 1
