"""Routing and mixing of experts by the CPU core, at any level: for tests. The engine does not use this."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch

from .native import library


@dataclass(frozen=True, slots=True)
class Routing:
    """Which experts see which rows; int32 but for the weights."""

    expert_starts: torch.Tensor
    """[experts + 1], first slot of each expert."""
    slot_rows: torch.Tensor
    """[slots], row of each slot: sorted by expert, rows in order within one."""
    row_slots: torch.Tensor
    """[T, active], a row's slots, likeliest first, then -1."""
    row_weights: torch.Tensor
    """float32 [T, active], 0 where there is no slot."""


def route(
    level: int, logits: torch.Tensor, active: int, *, renormalise: bool, experts: torch.Tensor | None = None
) -> Routing:
    """Choose from router logits float32 [T, experts]; `experts` int32 [T] lowers the number of a row.

    Raises ValueError where this machine lacks the level.
    """
    tokens, count = logits.shape
    starts, rows = (
        torch.full((count + 1,), -7, dtype=torch.int32),
        torch.full((tokens * active,), -7, dtype=torch.int32),
    )
    slots, weights = torch.full((tokens, active), -7, dtype=torch.int32), torch.full((tokens, active), torch.nan)
    done = _functions().tg_probe_moe_route(
        level, tokens, count, active, renormalise, logits.contiguous().data_ptr(),
        None if experts is None else experts.data_ptr(),
        starts.data_ptr(), rows.data_ptr(), slots.data_ptr(), weights.data_ptr(),
    )  # fmt: skip
    if done < 0:
        raise ValueError(f"level {level} is missing")
    return Routing(starts, rows[: int(starts[-1])], slots, weights)


def mix(level: int, routing: Routing, y: torch.Tensor, x: torch.Tensor, *, ranks: int = 1) -> None:
    """x float32 [T, hidden] += each row's weighted slots of y float32 [slots, hidden], in place.

    Raises ValueError where this machine lacks the level.
    """
    done = _functions().tg_probe_moe_mix(
        level, x.shape[0], x.shape[1], routing.row_slots.shape[1], routing.row_slots.data_ptr(),
        routing.row_weights.data_ptr(), y.contiguous().data_ptr(), x.data_ptr(), ranks,
    )  # fmt: skip
    if done < 0:
        raise ValueError(f"level {level} is missing")


@cache
def _functions() -> ctypes.CDLL:
    found, number, pointer = library(), ctypes.c_int32, ctypes.c_void_p
    found.tg_probe_moe_route.argtypes = [number] * 5 + [pointer] * 6
    found.tg_probe_moe_mix.argtypes = [number] * 4 + [pointer] * 4 + [number]
    return found
