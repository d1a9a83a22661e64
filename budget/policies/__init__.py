"""How much a request may spend: one file a policy, exporting `decide(tenant, ask) -> Limits`, pure."""

from __future__ import annotations

from typing import Protocol

from ..types import Ask, Limits, Tenant


class Decide(Protocol):
    """Sets the limits of one choice of a request. Pure: the same tenant and ask always get the same limits."""

    def __call__(self, tenant: Tenant, ask: Ask) -> Limits: ...
