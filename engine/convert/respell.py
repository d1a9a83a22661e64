"""Giving a reserved token of a vocabulary a new meaning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Respell:
    """`token`, a control token that training never used, becomes `to`; its id stays.

    Its embedding, which is noise, becomes `scale` times that of the token `like` (in the vocabulary's own spelling),
    so that the network reads it as something harmless. Under a tied output matrix its logit is then `scale` times the
    one of `like`: with a scale well below 1 the model does not choose it by itself.
    """

    token: str
    to: str
    like: str
    scale: float
