"""From a call to what runs: its route, the prompt of the first tier, and what to ask the budget for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tiergate.budget import Ask, Limits, Tenant
from tiergate.tiers import BadField, ChatRequest, ContextTooLong, Prompt, Rung, Tier, TierUnavailable

from .call import Call
from .route import Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    rungs: tuple[Rung, ...]
    prompt: Prompt
    """The request as the first rung will run it."""
    ask: Ask

    @property
    def thinks(self) -> bool:
        return any(rung.thinking for rung in self.rungs)


async def make_plan(call: Call, route: Route, tiers: Mapping[str, Tier], tenant: Tenant) -> Plan:
    """Prepare the request on the first tier of the ladder that takes it.

    Raises what `Tier.prepare` raises; `TierUnavailable` and `ContextTooLong` only when the last tier raises it too.
    """
    request = call.request
    rungs = tuple(_rung(tiers[name], request, tenant) for name in route.ladder)
    prompt = None
    while prompt is None:
        first, *others = rungs
        try:
            prompt = await first.tier.prepare(request, thinking=first.thinking)
            if prompt.room < (request.max_tokens or 1):
                raise ContextTooLong(
                    prompt_tokens=prompt.tokens, max_tokens=request.max_tokens, context=prompt.tokens + prompt.room
                )
        except (TierUnavailable, ContextTooLong):
            if not others:
                raise
            prompt, rungs = None, tuple(others)
    return Plan(rungs=rungs, prompt=prompt, ask=_ask(call, prompt, rungs))


async def within(plan: Plan, request: ChatRequest, limits: Limits) -> Plan:
    """The plan of a request as its grant allows it: where that grants no thinking, no thought is opened.

    Raises as `prepare` does.
    """
    if limits.hard != 0 or not plan.thinks:
        return plan
    rungs = tuple(Rung(rung.tier) for rung in plan.rungs)
    prompt = plan.prompt
    if prompt.opens_thinking:
        prompt = await rungs[0].tier.prepare(request, thinking=False)
    return replace(plan, rungs=rungs, prompt=prompt)


def _ask(call: Call, prompt: Prompt, rungs: tuple[Rung, ...]) -> Ask:
    """The worst case: the deepest tier's cap and thinking, and every tier of the ladder in turn."""
    request = call.request
    thinker = next((rung.tier for rung in reversed(rungs) if rung.thinking), None)
    return Ask(
        prompt_tokens=prompt.tokens,
        choices=call.choices,
        attempts=len(rungs),
        max_tokens=request.max_tokens,
        room=prompt.room,
        default_max_tokens=max(rung.tier.spec.max_tokens for rung in rungs),
        thinking=0 if thinker is None else wanted(request, thinker),
        closing=0 if thinker is None else thinker.closing,
        soft=request.thinking_soft,
        tier_thinking=0 if thinker is None else default_thinking(thinker),
    )


def _rung(tier: Tier, request: ChatRequest, tenant: Tenant) -> Rung:
    return Rung(tier, thinking(request, tier, tenant))


def thinking(request: ChatRequest, tier: Tier, tenant: Tenant) -> bool:
    """Whether this tier is to think before it answers: request, else tenant, else tier; never beyond the tenant."""
    if not tier.thinks or tenant.max_thinking == 0:
        return False
    tokens = wanted(request, tier)
    if tokens is None:
        tokens = default_thinking(tier) if tenant.default_thinking is None else tenant.default_thinking
    return tokens > 0


def wanted(request: ChatRequest, tier: Tier) -> int | None:
    """Thinking tokens that the request asks for, None if it says nothing. Raises `BadField`."""
    if request.thinking is not None or request.effort is None:
        return request.thinking
    tokens = tier.spec.thinking.efforts.get(request.effort)
    if tokens is None:
        listed = ", ".join(tier.spec.thinking.efforts)
        raise BadField(f"The model does not support this effort; it supports: {listed}.", "reasoning_effort")
    return tokens


def default_thinking(tier: Tier) -> int:
    """Thinking tokens that the tier gives when nobody says anything."""
    spec = tier.spec.thinking
    return (spec.budget or 0) if spec.enabled and tier.thinks else 0
