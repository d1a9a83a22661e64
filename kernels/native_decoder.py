"""A whole model on the native core: its weights and caches, and steps on flat memory."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from .abi import DENSE, MOE, Kernel, KvFormat, StepFault, TgLayer, TgLinear, TgModel, TgStep
from .memory import huge_bytes
from .native import library
from .packing import PackedWeight
from .toolchain import LEVELS


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """y = x W^T + bias."""

    weight: PackedWeight
    bias: torch.Tensor | None = None
    """float32 [n]."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedDense:
    """A gated MLP."""

    gate_up: PackedLinear
    """Paired."""
    down: PackedLinear


@dataclass(frozen=True, slots=True, eq=False)
class PackedExperts:
    """A mixture of gated MLPs."""

    router: PackedLinear
    """bf16."""
    gate_up: tuple[PackedLinear, ...]
    down: tuple[PackedLinear, ...]
    active: int
    renormalise: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedLayer:
    """One decoder layer; norms are float32."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int
    scale: float
    attention_norm: torch.Tensor
    qkv: PackedLinear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: PackedLinear
    mlp_norm: torch.Tensor
    mlp: PackedDense | PackedExperts


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedModel:
    """A decoder as the core runs it."""

    norm_eps: float
    embedding: torch.Tensor
    """bf16 [vocab, hidden]."""
    norm: torch.Tensor
    """float32 [hidden]."""
    head: PackedLinear
    layers: tuple[PackedLayer, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """The rotary embedding."""

    frequencies: torch.Tensor
    """float32 [rotated dimensions / 2]."""
    scale: float = 1.0
    """cos and sin are multiplied by it."""


class StepRefused(ValueError):
    """A step that the core's contract does not allow; nothing was written."""

    def __init__(self, fault: StepFault) -> None:
        super().__init__(f"the native core refused a step: {fault.name.lower().replace('_', ' ')}")
        self.fault = fault


class ThreadPool:
    """The compute threads of a process, the calling one among them; runners share it and are used one at a time."""

    def __init__(self, threads: int) -> None:
        """Raises `Unavailable` where the core cannot be built, `MemoryError` where threads cannot be made."""
        self.threads = threads
        handle = _functions().tg_pool_open(threads)
        if not handle:
            raise MemoryError(f"{threads} compute threads could not be started")
        self.handle: int = handle
        weakref.finalize(self, _functions().tg_pool_close, handle)


class NativeDecoder:
    """A packed model with its caches and scratch memory, on a pool of threads."""

    def __init__(
        self,
        model: PackedModel,
        rotation: Rotation,
        pool: ThreadPool,
        *,
        kv_format: KvFormat,
        blocks: int,
        block_size: int,
        max_tokens: int,
        levels: Sequence[int] | None = None,
    ) -> None:
        """`levels`, one for each of `Kernel`, caps the levels of instruction sets. Raises ValueError for a malformed
        model, or where memory is short."""
        self.vocab, self.hidden = model.embedding.shape
        self.max_tokens = max_tokens
        self.caches = tuple(
            huge_bytes(kv_bytes(kv_format, blocks, block_size, layer.kv_heads, layer.head_dim))
            for layer in model.layers
        )
        layers = (TgLayer * len(model.layers))(
            *(_layer(layer, cached) for layer, cached in zip(model.layers, self.caches, strict=True))
        )
        self._model = TgModel(
            vocab=self.vocab,
            hidden=self.hidden,
            layer_count=len(layers),
            norm_eps=model.norm_eps,
            embedding=_address(model.embedding, torch.bfloat16),
            norm=_address(model.norm, torch.float32),
            head=_linear(model.head),
            layers=layers,
            frequencies=_address(rotation.frequencies, torch.float32),
            rope_dim=2 * len(rotation.frequencies),
            rope_scale=rotation.scale,
            kv_format=kv_format,
            block_size=block_size,
            blocks=blocks,
        )
        # What the structs point to.
        self._kept = (model, rotation, pool, layers)
        caps = None if levels is None else (ctypes.c_int32 * len(Kernel))(*levels)
        self._handle = _functions().tg_runner_open(ctypes.byref(self._model), pool.handle, max_tokens, caps)
        if not self._handle:
            raise ValueError("the native core refused the model, or there is no memory for it")
        self._run = _functions().tg_step
        weakref.finalize(self, _functions().tg_runner_close, self._handle)

    def step(self, step: TgStep) -> int:
        """Steps done, 1 up to `step.repeat`. Raises `StepRefused`."""
        done: int = self._run(self._handle, ctypes.byref(step))
        if done < 0:
            raise StepRefused(StepFault(done))
        return done


def kv_bytes(kv_format: KvFormat, blocks: int, block_size: int, kv_heads: int, head_dim: int) -> int:
    """Bytes of one layer's cache."""
    size: int = _functions().tg_kv_bytes(kv_format, blocks, block_size, kv_heads, head_dim)
    return size


def kernel_levels(caps: Sequence[int] | None = None) -> dict[str, str]:
    """The level at which each kernel runs on this machine. Raises `Unavailable`."""
    found = (ctypes.c_int32 * len(Kernel))()
    _functions().tg_kernel_levels(None if caps is None else (ctypes.c_int32 * len(Kernel))(*caps), found)
    return {kernel.name.lower(): LEVELS[found[kernel]].name for kernel in Kernel}


def _layer(layer: PackedLayer, cached: torch.Tensor) -> TgLayer:
    made = TgLayer(
        attention_norm=_address(layer.attention_norm, torch.float32),
        qkv=_linear(layer.qkv),
        out=_linear(layer.out),
        q_norm=_address(layer.q_norm, torch.float32),
        k_norm=_address(layer.k_norm, torch.float32),
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        window=layer.window,
        scale=layer.scale,
        mlp_norm=_address(layer.mlp_norm, torch.float32),
        kv=cached.data_ptr(),
    )
    mlp = layer.mlp
    if isinstance(mlp, PackedDense):
        made.kind, made.gate_up, made.down = DENSE, _linear(mlp.gate_up), _linear(mlp.down)
        return made
    count = len(mlp.down)
    made.kind, made.router = MOE, _linear(mlp.router)
    made.experts, made.active, made.renormalise = count, mlp.active, int(mlp.renormalise)
    # The arrays live as long as the struct that points to them: ctypes keeps what is assigned to a pointer field.
    made.expert_gate_up = (TgLinear * count)(*map(_linear, mlp.gate_up))
    made.expert_down = (TgLinear * count)(*map(_linear, mlp.down))
    return made


def _linear(linear: PackedLinear) -> TgLinear:
    shape = linear.weight.shape
    return TgLinear(
        format=int(shape.format),
        group=shape.group,
        n=shape.n,
        k=shape.k,
        paired=int(shape.paired),
        rotated=int(shape.rotated),
        data=linear.weight.data.data_ptr(),
        bias=_address(linear.bias, torch.float32),
    )


def _address(tensor: torch.Tensor | None, dtype: torch.dtype) -> int | None:
    if tensor is None:
        return None
    if tensor.dtype is not dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError(f"expected a contiguous {dtype} tensor on the CPU, not {tensor.dtype}")
    return tensor.data_ptr() or None


@cache
def _functions() -> ctypes.CDLL:
    found, number, pointer = library(), ctypes.c_int32, ctypes.c_void_p
    found.tg_pool_open.restype = pointer
    found.tg_pool_open.argtypes = [number]
    found.tg_pool_close.restype = None
    found.tg_pool_close.argtypes = [pointer]
    found.tg_runner_open.restype = pointer
    found.tg_runner_open.argtypes = [ctypes.POINTER(TgModel), pointer, number, pointer]
    found.tg_runner_close.restype = None
    found.tg_runner_close.argtypes = [pointer]
    found.tg_step.argtypes = [pointer, ctypes.POINTER(TgStep)]
    found.tg_kernel_levels.restype = None
    found.tg_kernel_levels.argtypes = [pointer, pointer]
    found.tg_kv_bytes.restype = ctypes.c_int64
    found.tg_kv_bytes.argtypes = [number] * 5
    return found
