"""A model's weights as the native core reads them: every matrix packed, all in one piece of memory, in order of use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from tiergate.kernels import (
    Format,
    PackedDense,
    PackedExperts,
    PackedLayer,
    PackedLinear,
    PackedModel,
    PackedShape,
    PackedWeight,
    huge_bytes,
    pack,
    pack_codes,
    pack_int8,
)

from .loader import weights_of
from .models.spec import LayerSpec, ModelSpec, MoeSpec
from .quant.operands import Int4, Int8, Operand
from .smoothing import smooth

NativePrecision = Literal["bf16", "int8", "int4"]


@dataclass(frozen=True, slots=True)
class Kind:
    """How a matrix is kept: see `PackedShape`."""

    format: Format
    group: int = 0
    rotated: bool = False


Kinds = Mapping[str, Kind]
"""By operand; all experts of a layer share one."""

Told = Callable[[Operand, PackedWeight], None]

INT4_GROUP = 32
"""Inputs that share a scale where the checkpoint does not say: that of GGUF's 4-bit formats."""
ROTATION = 64
"""Inputs that are rotated together."""
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Plain:
    """A tensor that is kept as it is."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the memory of a model."""

    start: int
    """In bytes, a multiple of 64."""
    of: PackedShape | Plain


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything lies: it follows from the model's spec and the kinds of its matrices."""

    kinds: Kinds
    slots: Mapping[str, Slot]
    """By operand, as `<architecture>.weights` names them; a tied head is `head`, an expert's matrix has its number
    behind the name: `layers.0.experts_down.3`."""
    bytes: int


def kind_of(name: str, operand: Operand, precision: NativePrecision) -> Kind:
    """How a matrix is kept in a precision.

    Values that are of 8 bits already stay what they are. Others are rotated before they are rounded to them, but for
    those that read what attention gives: means of values have no outliers, and lose by it (measured on SmolLM2-135M).
    Routers stay bf16: a small error turns a choice between experts. With int4 the head is int8: it is read as a whole
    for every token, and its errors go straight into the odds.
    """
    if precision == "bf16" or name.endswith("router"):
        return Kind(Format.BF16)
    if precision == "int4" and name != "head":
        if isinstance(operand, Int4):
            return Kind(Format.INT4, operand.group)
        if operand.shape[-1] % INT4_GROUP == 0:
            return Kind(Format.INT4, INT4_GROUP)
    rotates = not isinstance(operand, Int8) and operand.shape[-1] % ROTATION == 0 and not name.endswith(".out")
    return Kind(Format.INT8, rotated=rotates)


def choose_kinds(operands: Mapping[str, Operand], precision: NativePrecision) -> Kinds:
    """The kinds of a model's matrices; its head is among the operands."""
    return {name: kind_of(name, one, precision) for name, one in operands.items() if _is_matrix(name, one.shape)}


def lay_out(spec: ModelSpec, kinds: Kinds) -> Layout:
    """Place all operands one behind another in order of use. Raises KeyError without a kind for each matrix."""
    slots: dict[str, Slot] = {}
    at = 0
    for name, of in _parts(spec, kinds):
        slots[name] = Slot(at, of)
        at += -(-of.bytes // ALIGNMENT) * ALIGNMENT
    return Layout(kinds, slots, at)


def pack_operands(
    spec: ModelSpec, operands: dict[str, Operand], precision: NativePrecision, told: Told | None = None
) -> tuple[Layout, torch.Tensor]:
    """Pack a model's operands: where each lies, and the memory, uint8 [layout.bytes], on huge pages.

    The dict is emptied on the way, so that plain and packed copies hardly stand side by side. `told` is shown every
    matrix as it was and as it has become.
    """
    if spec.tied:
        operands["head"] = operands["embed"]
    kinds = choose_kinds(operands, precision)
    smooth(spec, operands, {name for name, kind in kinds.items() if kind.rotated})
    layout = lay_out(spec, kinds)
    room = huge_bytes(layout.bytes)
    for name in list(operands):
        operand = operands.pop(name)
        whole = name in layout.slots
        parts: tuple[Operand, ...] = (operand,) if whole else operand.split()
        for index, part in enumerate(parts):
            slot = layout.slots[name if whole else f"{name}.{index}"]
            _write(slot, part, room)
            if told and not isinstance(slot.of, Plain):
                told(part, PackedWeight(slot.of, room[slot.start : slot.start + slot.of.bytes]))
    return layout, room


def assemble(spec: ModelSpec, layout: Layout, room: torch.Tensor) -> PackedModel:
    """The model whose operands lie in `room`."""
    read = _Reader(layout, room)
    return PackedModel(
        norm_eps=spec.norm_eps,
        embedding=read.plain("embed"),
        norm=read.plain("norm"),
        head=read.linear("head"),
        layers=tuple(_layer(one, read, f"layers.{index}.") for index, one in enumerate(spec.layers)),
    )


def _is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) > 1 and name != "embed"


def _parts(spec: ModelSpec, kinds: Kinds) -> Iterator[tuple[str, PackedShape | Plain]]:
    shapes = {name: weight.shape for name, weight in weights_of(spec).items()}

    def matrix(operand: str, shape: tuple[int, ...]) -> PackedShape:
        kind, (n, k) = kinds[operand], shape
        return PackedShape(kind.format, n, k, kind.group, operand.endswith("gate_up"), kind.rotated)

    yield "embed", Plain(torch.bfloat16, shapes["embed"])
    for index in range(len(spec.layers)):
        for part in _ORDER:
            name = f"layers.{index}.{part}"
            shape = shapes.get(name, ())
            if len(shape) == 1:
                yield name, Plain(torch.float32, shape)
            elif len(shape) == 2:
                yield name, matrix(name, shape)
            elif shape:
                yield from ((f"{name}.{expert}", matrix(name, shape[1:])) for expert in range(shape[0]))
    yield "norm", Plain(torch.float32, shapes["norm"])
    yield "head", matrix("head", shapes["embed" if spec.tied else "head"])


_ORDER = (
    "attention_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "out", "out_bias",
    "mlp_norm", "router", "gate_up", "gate_up_bias", "down", "down_bias", "experts_gate_up", "experts_down",
)  # fmt: skip
"""Of a layer's operands."""


def _write(slot: Slot, operand: Operand, room: torch.Tensor) -> None:
    here = room[slot.start : slot.start + slot.of.bytes]
    of = slot.of
    if isinstance(of, Plain):
        here.view(of.dtype).view(of.shape).copy_(operand.dense())
    elif of.format is Format.INT4 and isinstance(operand, Int4):
        pack_codes(of, operand.codes, operand.scale, operand.minimum, here)
    elif of.format is Format.INT8 and isinstance(operand, Int8):
        pack_int8(of, operand.values, operand.scale, here)
    else:
        pack(of, operand.dense(), here)


class _Reader:
    def __init__(self, layout: Layout, room: torch.Tensor) -> None:
        self._layout = layout
        self._room = room

    def plain(self, name: str) -> torch.Tensor:
        slot = self._layout.slots[name]
        assert isinstance(slot.of, Plain)
        return self._bytes(slot).view(slot.of.dtype).view(slot.of.shape)

    def maybe(self, name: str) -> torch.Tensor | None:
        return self.plain(name) if name in self._layout.slots else None

    def linear(self, name: str) -> PackedLinear:
        slot = self._layout.slots[name]
        assert not isinstance(slot.of, Plain)
        return PackedLinear(PackedWeight(slot.of, self._bytes(slot)), self.maybe(f"{name}_bias"))

    def linears(self, name: str, count: int) -> tuple[PackedLinear, ...]:
        return tuple(self.linear(f"{name}.{index}") for index in range(count))

    def _bytes(self, slot: Slot) -> torch.Tensor:
        return self._room[slot.start : slot.start + slot.of.bytes]


def _layer(spec: LayerSpec, read: _Reader, prefix: str) -> PackedLayer:
    attention, mlp = spec.attention, spec.mlp
    packed: PackedDense | PackedExperts
    if isinstance(mlp, MoeSpec):
        packed = PackedExperts(
            router=read.linear(prefix + "router"),
            gate_up=read.linears(prefix + "experts_gate_up", mlp.experts),
            down=read.linears(prefix + "experts_down", mlp.experts),
            active=mlp.active,
            renormalise=mlp.renormalise,
        )
    else:
        packed = PackedDense(read.linear(prefix + "gate_up"), read.linear(prefix + "down"))
    return PackedLayer(
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        window=attention.window,
        scale=attention.scale,
        attention_norm=read.plain(prefix + "attention_norm"),
        qkv=read.linear(prefix + "qkv"),
        q_norm=read.maybe(prefix + "q_norm"),
        k_norm=read.maybe(prefix + "k_norm"),
        out=read.linear(prefix + "out"),
        mlp_norm=read.plain(prefix + "mlp_norm"),
        mlp=packed,
    )
