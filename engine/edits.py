"""What a sequence's parameters do to its logits, kept as it grows: penalties and biases, by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .messages import SamplingParams

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class Edits:
    """The tokens whose logits change, each once: those biased, and under penalties those generated.

    A token is added or counted in constant time. `ids`, `scales` and `adds` are views of arrays that keep their
    `addresses` until they have to grow; what they show changes with the next `count`.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._repetition = params.repetition_penalty
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty
        self.penalises = _has_penalties(params)
        """Whether each generated token changes what the next one meets."""
        self._bias = params.logit_bias
        self._place = {token: place for place, token in enumerate(params.logit_bias)}
        self._counts = [0] * len(self._place)
        size = max(16, 2 * len(self._place))
        self._ids = np.zeros(size, np.int32)
        self._scales = np.ones(size, np.float32)
        self._adds = np.zeros(size, np.float32)
        self.addresses = _addresses(self._ids, self._scales, self._adds)
        """Of the three arrays."""
        for token, place in self._place.items():
            self._ids[place] = token
            self._adds[place] = params.logit_bias[token]

    @classmethod
    def of(cls, params: SamplingParams) -> Edits | None:
        """None when the parameters leave the logits alone."""
        return cls(params) if params.logit_bias or _has_penalties(params) else None

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, token: int) -> None:
        """One more `token` was generated."""
        if not self.penalises:
            return
        place = self._place.get(token)
        if place is None:
            place = len(self._counts)
            if place == len(self._ids):
                self._grow()
            self._place[token] = place
            self._counts.append(0)
            self._ids[place] = token
        self._counts[place] += 1
        self._scales[place] = self._repetition
        penalty = self._frequency * self._counts[place] + self._presence
        self._adds[place] = self._bias.get(token, 0.0) - penalty

    @property
    def ids(self) -> Ids:
        """int32 [E], each token once."""
        return self._ids[: len(self._counts)]

    @property
    def scales(self) -> Floats:
        """float32 [E]: divides positive logits, multiplies others."""
        return self._scales[: len(self._counts)]

    @property
    def adds(self) -> Floats:
        """float32 [E]: bias less presence and frequency penalties."""
        return self._adds[: len(self._counts)]

    def _grow(self) -> None:
        self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
        self._scales = np.concatenate((self._scales, np.ones_like(self._scales)))
        self._adds = np.concatenate((self._adds, np.zeros_like(self._adds)))
        self.addresses = _addresses(self._ids, self._scales, self._adds)


def _addresses(*arrays: npt.NDArray[Any]) -> tuple[int, ...]:
    return tuple(array.ctypes.data for array in arrays)


def _has_penalties(params: SamplingParams) -> bool:
    return params.presence_penalty != 0 or params.frequency_penalty != 0 or params.repetition_penalty != 1
