"""The stored tensors of one quantised matrix, checked before anybody computes with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..errors import ModelError
from .operands import Dense, Int4, Operand

_FITTING = (64, 32)
"""Sizes of groups that the native core computes with, the larger first."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of one module by their names within it."""

    module: str
    tensors: Mapping[str, torch.Tensor]

    def take(self, name: str, shape: tuple[int, ...], *dtypes: torch.dtype) -> torch.Tensor:
        """The tensor `name`. Raises `ModelError` unless it is there in this shape and one of these dtypes."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelError(f"the checkpoint has no tensor {self.module}{name}")
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{self.module}{name} has shape {list(tensor.shape)}, not {list(shape)}")
        if tensor.dtype not in dtypes:
            raise ModelError(f"{self.module}{name} has dtype {tensor.dtype}")
        return tensor

    def scales(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """float32 of the tensor of scales `name`. Raises `ModelError` where one is no finite number."""
        scale = self.take(name, shape, torch.float16, torch.bfloat16, torch.float32).float()
        if not bool(torch.isfinite(scale).all()):
            raise ModelError(f"{self.module}{name} holds scales that are no finite numbers")
        return scale

    def refuse(self, name: str) -> None:
        """Raises `ModelError` if there is such a tensor."""
        if name in self.tensors:
            raise ModelError(f"{self.module}{name} is not supported")


def groups_of(module: str, inputs: int, group: int) -> int:
    """How many groups a row of so many inputs has. Raises `ModelError` where they do not come out even."""
    if group and inputs % group:
        raise ModelError(f"{module}: {inputs} inputs do not make groups of {group}")
    return inputs // group if group else 1


def four_bit(codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> Operand:
    """The matrix w = scale * (code - zero) as `Int4`, or as `Dense` where groups are of an unfitting size.

    `codes` uint8 [n, k], `scale` float32 and `zero` (whole numbers, any dtype) [n, k / group]. The minimum
    -scale * zero is rounded to float16: exact for power-of-two zero points, such as the 8 of symmetric weights, and
    off by at most 2**-11 of its size, that is 1/128 of a step between codes, for the others.
    """
    groups = scale.shape[-1]
    group = codes.shape[-1] // groups
    minimum = -scale * zero
    fitting = next((size for size in _FITTING if group % size == 0), 0)
    if not fitting or not _halves(scale) or not _halves(minimum):
        plain = codes.view(-1, groups, group).float() * scale[..., None] + minimum[..., None]
        return Dense(plain.flatten(-2))
    exact = torch.equal(scale.half().float(), scale) and torch.equal(minimum.half().float(), minimum)
    return Int4(codes, scale.half(), minimum.half(), exact).regroup(fitting)


def _halves(values: torch.Tensor) -> bool:
    """Whether float16 holds these to its full precision: neither too large nor among its denormals."""
    size = values.abs()
    return bool(((size == 0) | ((size >= 2.0**-14) & (size <= 65504.0))).all())


def words(packed: torch.Tensor, order: tuple[int, ...] = tuple(range(8)), dim: int = -1) -> torch.Tensor:
    """The eight 4-bit values of every int32 in `packed`, as uint8, in place of it along `dim`.

    Value `order[i]` of a word lies in its bits 4 i to 4 i + 3.
    """
    places = torch.empty(8, dtype=torch.int32)
    places[list(order)] = torch.arange(0, 32, 4, dtype=torch.int32)
    at = dim % packed.dim()
    apart = (packed.unsqueeze(at + 1) >> places.view(-1, *[1] * (packed.dim() - 1 - at))) & 15
    return apart.flatten(at, at + 1).to(torch.uint8)
