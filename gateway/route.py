"""Which tiers may answer, in which order, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiergate.budget import Tenant
from tiergate.tiers import ChatRequest, Tier

from .classify import Class, Complexity
from .config import RouterSpec
from .errors import ModelRefused, UnknownModel

AUTO = "auto"
LITTLE = ("none", "minimal")
MUCH = ("high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class View:
    """A tier as the router sees it at this moment."""

    name: str
    names: frozenset[str]
    """What clients may call it: its name, its aliases, its model's public name."""
    ready: bool
    on_ladder: bool
    """Whether `auto` may choose it."""


@dataclass(frozen=True, slots=True)
class Route:
    ladder: tuple[str, ...]
    """Tiers from the first to try to the last resort; never empty."""
    reason: str
    """Why it is this ladder, a few words of ASCII."""
    label: Class
    score: float

    def header(self) -> str:
        """As `x-tiergate-route` reports it."""
        return f'tier={">".join(self.ladder)}; class={self.label}; score={self.score:.3f}; reason="{self.reason}"'


def names_of(tier: Tier) -> frozenset[str]:
    return frozenset((tier.name, *tier.spec.aliases, tier.model))


def allowed(tenant: Tenant, name: str, names: frozenset[str]) -> bool:
    """Whether the tenant may ask for a model by `name`, whose names all together are `names`."""
    return not tenant.models or name in tenant.models or not names.isdisjoint(tenant.models)


def decide(
    request: ChatRequest, complexity: Complexity, views: Sequence[View], tenant: Tenant, spec: RouterSpec
) -> Route:
    """The route of a request. `views` are in the order of the ladder, cheapest first, and at least one.

    A tier named outright is taken even while it is not ready, so that the client hears about that one. `auto` takes the
    cheapest that will do among the tiers that are ready and that the tenant may use.

    Raises `UnknownModel`, `ModelRefused`.
    """
    if request.model != AUTO:
        named = next((one for one in views if request.model in one.names), None)
        if named is None:
            raise UnknownModel(request.model)
        if not allowed(tenant, request.model, named.names):
            raise ModelRefused(request.model)
        return Route((named.name,), "named by the request", complexity.label, complexity.score)
    usable = [one for one in views if one.on_ladder and serves_auto(tenant, one)]
    if not usable:
        raise ModelRefused(request.model)
    ready = [one for one in usable if one.ready] or usable
    ladder, reason = _climb(request, complexity, ready, spec)
    if len(ready) < len(usable):
        away = ", ".join(one.name for one in usable if not one.ready)
        reason = f"{reason}; {away} not ready"
    return Route(ladder, reason, complexity.label, complexity.score)


def serves_auto(tenant: Tenant, one: View) -> bool:
    """Whether `auto` may be this tier for the tenant: allowed by name, or together with all of `auto`."""
    return not tenant.models or AUTO in tenant.models or not one.names.isdisjoint(tenant.models)


def _climb(
    request: ChatRequest, complexity: Complexity, ready: Sequence[View], spec: RouterSpec
) -> tuple[tuple[str, ...], str]:
    first, last = ready[0].name, ready[-1].name
    if first == last:
        return (first,), "the only tier there is"
    wish = _effort(request)
    if wish == "little":
        return (first,), "little thinking asked for"
    if wish == "much":
        return (last,), "much thinking asked for"
    signs = ", ".join(complexity.signs) or "plain"
    if complexity.score >= spec.deep_from:
        return (last,), signs
    if complexity.score >= spec.climb_from:
        return (first, last), f"{signs}; may climb"
    return (first,), signs


def _effort(request: ChatRequest) -> str | None:
    """What the client's own words on thinking say about the tier it wants."""
    if request.thinking is not None:
        return "much" if request.thinking else "little"
    if request.effort in LITTLE:
        return "little"
    return "much" if request.effort in MUCH else None
