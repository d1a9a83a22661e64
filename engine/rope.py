"""Rotary frequencies of a `RopeSpec`, one formula a kind. Pure; float32 like the models' own code."""

from __future__ import annotations

import math

import torch

from .models.spec import RopeSpec


def frequencies(spec: RopeSpec, context: int) -> torch.Tensor:
    """Inverse frequencies float32 [dim / 2] for a lane whose sequences may grow to `context` tokens.

    Keys stay in the cache as they were rotated, so all tokens of a lane use the same frequencies: `dynamic` and
    `longrope`, which elsewhere switch with the length of the moment, take those of `context`.
    """
    exponents = torch.arange(0, spec.dim, 2, dtype=torch.int64).float() / spec.dim
    if spec.kind == "dynamic":
        return 1.0 / _dynamic_base(spec, context) ** exponents
    if spec.kind == "longrope":
        factors = spec.long_factor if context > spec.original else spec.short_factor
        return 1.0 / (torch.tensor(factors, dtype=torch.float32) * spec.theta**exponents)
    plain = 1.0 / spec.theta**exponents
    if spec.kind == "linear":
        return plain / spec.factor
    if spec.kind == "llama3":
        return _llama3(spec, plain)
    if spec.kind == "yarn":
        return _yarn(spec, spec.theta**exponents)
    return plain


def _dynamic_base(spec: RopeSpec, context: int) -> float:
    """NTK-aware base, grown with the context beyond the trained one (Su, "dynamic NTK", 2023)."""
    length = max(context, spec.max_position)
    growth = spec.factor * length / spec.max_position - (spec.factor - 1)
    return spec.theta * math.pow(growth, spec.dim / (spec.dim - 2))


def _llama3(spec: RopeSpec, plain: torch.Tensor) -> torch.Tensor:
    """Long waves slowed by `factor`, short ones kept, a linear blend between (Llama 3.1)."""
    longest, shortest = spec.original / spec.low_freq_factor, spec.original / spec.high_freq_factor
    waves = 2 * math.pi / plain
    slowed = torch.where(waves > longest, plain / spec.factor, plain)
    blend = (spec.original / waves - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
    blended = (1 - blend) * slowed / spec.factor + blend * slowed
    return torch.where((waves >= shortest) & (waves <= longest), blended, slowed)


def _yarn(spec: RopeSpec, periods: torch.Tensor) -> torch.Tensor:
    """YaRN (arXiv 2309.00071, section 3.2): interpolate what turns less than `beta_slow` times over the trained
    context, keep what turns more than `beta_fast` times, a linear ramp between."""

    def dimension(turns: float) -> float:
        return spec.dim * math.log(spec.original / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = dimension(spec.beta_fast), dimension(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(spec.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return 1.0 / (spec.factor * periods) * (1 - keep) + 1.0 / periods * keep
