"""The plain policy: what the request asks for, else the tenant's default, else the tier's; within the bounds."""

from __future__ import annotations

import math

from ..types import Ask, Limits, Tenant

SOFT_CEILING = 1.25
"""Where an aim is cut after all, as a multiple of it."""


def decide(tenant: Tenant, ask: Ask) -> Limits:
    """The most specific word wins for wishes, the tightest one for bounds, so a request can only lower a limit.

    - cap: the request's `max_tokens` or the default, within the tenant's and what the context still holds;
    - answer reserve: the tenant's, but never more than half the cap (rounded up), so that a small cap leaves both
      something to think with and something to say;
    - thinking: request, else tenant, else tier; within the tenant's maximum and what the cap leaves beside the reserve
      and the closing of the thought, so that what is granted is what the engine will let through;
    - soft (asked for by tenant or request): that number is the aim, and the cut is a quarter beyond it, which the same
      bounds hold. Otherwise that number is the cut.
    """
    cap = ask.default_max_tokens if ask.max_tokens is None else ask.max_tokens
    if tenant.max_tokens is not None:
        cap = min(cap, tenant.max_tokens)
    cap = max(1, min(cap, ask.room))
    reserve = min(tenant.answer_reserve, (cap + 1) // 2)
    bound = max(0, cap - reserve - ask.closing)
    if tenant.max_thinking is not None:
        bound = min(bound, tenant.max_thinking)
    wanted = ask.thinking
    if wanted is None:
        wanted = ask.tier_thinking if tenant.default_thinking is None else tenant.default_thinking
    thinking = min(wanted, bound)
    if thinking == 0 or not (ask.soft or tenant.mode == "soft"):
        return Limits(max_tokens=cap, hard=thinking, soft=None, answer_reserve=reserve)
    ceiling = min(math.ceil(thinking * SOFT_CEILING), bound)
    return Limits(max_tokens=cap, hard=ceiling, soft=thinking, answer_reserve=reserve)
