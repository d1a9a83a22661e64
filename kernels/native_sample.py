"""The sampler of the CPU core on arrays of its own, apart from a step."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .abi import TgChosen, TgSampling
from .native import library
from .ops.sample import SampleRows

SAMPLING = np.dtype(TgSampling)
"""Pointers are addresses of int32 or float32 arrays that the caller keeps alive."""

CHOSEN = np.dtype(TgChosen)

Records = npt.NDArray[np.void]
"""A structured array."""


@dataclass(frozen=True, slots=True, eq=False)
class Sampling:
    """Parameters of rows in the core's form."""

    records: Records
    """`SAMPLING` [R]."""
    arrays: tuple[npt.NDArray[Any], ...]
    """What the records' pointers point into."""


def sampling_of(rows: SampleRows, *, logprobs: int = -1) -> Sampling:
    """`logprobs`: likeliest tokens to report of each row; -1: no statistics."""
    records = np.zeros(len(rows.seeds), SAMPLING)
    records["temperature"], records["top_k"] = rows.temperature, rows.top_k
    records["top_p"], records["min_p"] = rows.top_p, rows.min_p
    records["seed"] = np.array([seed & ((1 << 64) - 1) for seed in rows.seeds], np.uint64)
    records["position"] = rows.positions
    records["logprobs"], records["forced"] = logprobs, -1
    edits = rows.edit_ids.astype(np.int32), rows.edit_scales.astype(np.float32), rows.edit_adds.astype(np.float32)
    begins = rows.edit_starts[:-1].astype(np.uint64) * np.uint64(4)
    records["edit_count"] = np.diff(rows.edit_starts)
    for name, array in zip(("edit_ids", "edit_scales", "edit_adds"), edits, strict=True):
        records[name] = begins + np.uint64(array.ctypes.data)
    bans = [np.array(tokens, np.int32) for tokens in rows.bans.values()]
    for row, tokens in zip(rows.bans, bans, strict=True):
        records["ban_count"][row], records["ban_ids"][row] = len(tokens), tokens.ctypes.data
    return Sampling(records, (*edits, *bans))


class NativeSampler:
    """Draws rows at one level of instruction sets. Owns its scratch memory, so it serves one thread at a time."""

    def __init__(self, level: int, vocab: int, *, ranks: int = 1, threads: bool = False) -> None:
        """`level` is one of `cpu/abi.h`, from 0; `ranks` share the rows, each on a thread of its own if `threads`.

        Raises `Unavailable` where the core cannot be built, `ValueError` for a level that it was not built with.
        """
        core = library()
        self._run = core.tg_probe_sample
        self._run.argtypes = [
            ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32,
            ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
        ]  # fmt: skip
        core.tg_probe_sample_scratch.restype = ctypes.c_int64
        self._scratch = np.zeros(core.tg_probe_sample_scratch(vocab, ranks) + 64, np.uint8)
        self._level, self._vocab, self._ranks, self._threads = level, vocab, ranks, threads
        if self._call(np.zeros((0, vocab), np.float32), np.zeros(0, SAMPLING), np.zeros(0, CHOSEN)):
            raise ValueError(f"the CPU core was not built with level {level}")

    def __call__(self, logits: npt.NDArray[np.float32], sampling: Records) -> Records:
        """logits float32 [R, vocab], rows dense but maybe apart, sampling `SAMPLING` [R] → `CHOSEN` [R].

        Ids in `sampling` must be of the vocabulary and numbers in their ranges: nothing is checked.
        """
        assert logits.dtype == np.float32
        assert logits.shape == (len(sampling), self._vocab)
        assert logits.size < 2 or logits[:1].flags.c_contiguous
        chosen = np.zeros(len(sampling), CHOSEN)
        self._call(logits, sampling, chosen)
        return chosen

    def _call(self, logits: npt.NDArray[Any], sampling: Records, chosen: Records) -> int:
        start = self._scratch.ctypes.data
        return int(
            self._run(
                self._level, self._ranks, self._threads, logits.ctypes.data, logits.strides[0] // 4, len(logits),
                self._vocab, sampling.ctypes.data, chosen.ctypes.data, start + -start % 64,
            )
        )  # fmt: skip
