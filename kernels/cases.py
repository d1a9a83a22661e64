"""Inputs on which every implementation of an op is checked against the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of an op."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest |got - want| <= absolute + relative * |want| against the formula in float64."""

    relative: float
    absolute: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Sizes of one call. What a size means is said by the op's `inputs`; unused ones keep their defaults."""

    name: str
    rows: int = 0
    hidden: int = 32
    width: int = 48
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    rotary: int = 0
    block: int = 4
    queries: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    window: int = 0
    experts: int = 4
    active: int = 2
    on: bool = False
    """The op's optional part: biases, head norms, renormalisation."""
    limited: bool = False
    """Rows with fewer experts than the model's own number."""
    strided: bool = False
    """The rows of the main input are apart in memory."""


class Draw:
    """Random tensors of one dtype on one device, the same ones for the same seed."""

    def __init__(self, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> None:
        self.dtype = dtype
        self.device = device
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> torch.Tensor:
        values = torch.randn(shape, generator=self._generator).mul_(scale).add_(mean)
        return values.to(dtype=self.dtype, device=self.device)

    def rows(self, count: int, width: int, *, strided: bool) -> torch.Tensor:
        """Standard normal [count, width]; `strided` leaves room between the rows."""
        return self.normal(count, width + 24)[:, 8 : 8 + width] if strided else self.normal(count, width)

    def weight(self, out: int, width: int) -> torch.Tensor:
        """A matrix that keeps unit variance."""
        return self.normal(out, width, scale=width**-0.5)

    def norm(self, width: int) -> torch.Tensor:
        return self.normal(width, scale=0.2, mean=1.0)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """int64 in [low, high)."""
        return torch.randint(low, high, shape, generator=self._generator).to(self.device)

    def distinct(self, count: int, below: int) -> torch.Tensor:
        """`count` different int64 in [0, below)."""
        return torch.randperm(below, generator=self._generator)[:count].to(self.device)
