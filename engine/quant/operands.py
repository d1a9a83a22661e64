"""What a matrix of a checkpoint is: plain numbers, or codes with their scales. Leading axes (experts) are free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Dense:
    """Floating-point values, of any shape."""

    values: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def dense(self) -> torch.Tensor:
        """The values as they are."""
        return self.values

    def view(self, shape: tuple[int, ...]) -> Dense:
        """The same in another shape of as many values."""
        return Dense(self.values.view(shape))

    def split(self) -> tuple[Dense, ...]:
        """One along the first axis after another."""
        return tuple(map(Dense, self.values))


@dataclass(frozen=True, slots=True)
class Int4:
    """w = scale * code + minimum, in float32."""

    codes: torch.Tensor
    """uint8 [..., n, k], each 0 to 15."""
    scale: torch.Tensor
    """float16 [..., n, k / group]."""
    minimum: torch.Tensor
    """float16 [..., n, k / group]."""
    exact: bool = True
    """False where the checkpoint's own scales or minima had to be rounded to float16."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.codes.shape)

    @property
    def group(self) -> int:
        """Neighbouring inputs that share a scale and a minimum."""
        return self.codes.shape[-1] // self.scale.shape[-1]

    def dense(self) -> torch.Tensor:
        """float32 of the same shape."""
        grouped = self.codes.view(*self.scale.shape, self.group).float()
        return (grouped * self.scale.float()[..., None] + self.minimum.float()[..., None]).view(self.shape)

    def view(self, shape: tuple[int, ...]) -> Int4:
        """The same with other axes before the last one."""
        groups = (*shape[:-1], self.scale.shape[-1])
        return Int4(self.codes.view(shape), self.scale.view(groups), self.minimum.view(groups), self.exact)

    def split(self) -> tuple[Int4, ...]:
        """One along the first axis after another."""
        return tuple(Int4(*one, self.exact) for one in zip(self.codes, self.scale, self.minimum, strict=True))

    def regroup(self, group: int) -> Int4:
        """The same values in smaller groups, of which each present one holds a whole number."""
        times = self.group // group
        scale, minimum = (each.repeat_interleave(times, dim=-1) for each in (self.scale, self.minimum))
        return Int4(self.codes, scale, minimum, self.exact)


@dataclass(frozen=True, slots=True)
class Int8:
    """w = scale * value."""

    values: torch.Tensor
    """int8 [..., n, k], each -127 to 127."""
    scale: torch.Tensor
    """float32 [..., n]."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def dense(self) -> torch.Tensor:
        """float32 of the same shape."""
        return self.values.float() * self.scale[..., None]

    def view(self, shape: tuple[int, ...]) -> Int8:
        """The same with other axes before the last one."""
        return Int8(self.values.view(shape), self.scale.view(shape[:-1]))

    def split(self) -> tuple[Int8, ...]:
        """One along the first axis after another."""
        return tuple(map(Int8, self.values, self.scale))


Operand = Dense | Int4 | Int8


def stack(parts: Sequence[Operand]) -> Operand:
    """One above another along the first axis.

    Codes stay codes where all parts are of one kind (4-bit ones in the smallest of their groups); a mixture becomes
    `Dense`, which loses nothing but the knowledge of the grid that some of its values lie on.
    """
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Int4) for part in parts):
        return _stack_int4([part for part in parts if isinstance(part, Int4)])
    if all(isinstance(part, Int8) for part in parts):
        eights = [part for part in parts if isinstance(part, Int8)]
        return Int8(torch.cat([part.values for part in eights]), torch.cat([part.scale for part in eights]))
    plain = [part.dense() for part in parts]
    dtype = max((part.dtype for part in plain), key=lambda one: one.itemsize)
    return Dense(torch.cat([part.to(dtype) for part in plain]))


def _stack_int4(parts: Sequence[Int4]) -> Operand:
    group = min(part.group for part in parts)
    if any(part.group % group for part in parts):
        return Dense(torch.cat([part.dense() for part in parts]))
    same = [part.regroup(group) for part in parts]
    codes, scale, minimum = (torch.cat([getattr(part, name) for part in same]) for name in _TENSORS)
    return Int4(codes, scale, minimum, all(part.exact for part in same))


_TENSORS = ("codes", "scale", "minimum")
