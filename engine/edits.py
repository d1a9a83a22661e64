"""What a sequence's parameters do to its logits, kept as it grows: penalties and biases, by token."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .messages import SamplingParams

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class Edits:
    """The tokens whose logits change, each once: those biased, and under penalties those generated.

    A token is added or counted in constant time; `scales` and `adds` are vectorised over all of them.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._repetition = params.repetition_penalty
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty
        self.penalises = _has_penalties(params)
        """Whether each generated token changes what the next one meets."""
        self._place = {token: place for place, token in enumerate(params.logit_bias)}
        size = max(16, 2 * len(self._place))
        self._ids = np.zeros(size, np.int64)
        self._bias = np.zeros(size, np.float32)
        self._counts = np.zeros(size, np.float32)
        for token, place in self._place.items():
            self._ids[place] = token
            self._bias[place] = params.logit_bias[token]

    @classmethod
    def of(cls, params: SamplingParams) -> Edits | None:
        """None when the parameters leave the logits alone."""
        return cls(params) if params.logit_bias or _has_penalties(params) else None

    def count(self, token: int) -> None:
        """One more `token` was generated."""
        if not self.penalises:
            return
        place = self._place.get(token)
        if place is None:
            place = len(self._place)
            if place == len(self._ids):
                self._grow()
            self._place[token] = place
            self._ids[place] = token
        self._counts[place] += 1

    @property
    def ids(self) -> Ids:
        """int64 [E], each token once."""
        return self._ids[: len(self._place)]

    @property
    def scales(self) -> Floats:
        """float32 [E]: divides positive logits, multiplies others."""
        used = len(self._place)
        return np.where(self._counts[:used] > 0, np.float32(self._repetition), np.float32(1))

    @property
    def adds(self) -> Floats:
        """float32 [E]: bias less presence and frequency penalties."""
        counts = self._counts[: len(self._place)]
        penalty = np.float32(self._frequency) * counts + np.float32(self._presence) * (counts > 0)
        return np.subtract(self._bias[: len(self._place)], penalty, dtype=np.float32)

    def _grow(self) -> None:
        for name in ("_ids", "_bias", "_counts"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate((old, np.zeros_like(old))))


def _has_penalties(params: SamplingParams) -> bool:
    return params.presence_penalty != 0 or params.frequency_penalty != 0 or params.repetition_penalty != 1
