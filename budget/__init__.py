"""Says how much a tenant may spend, and keeps the books."""

from .errors import BudgetError, BudgetExceeded, NeverFits, StoreUnavailable, UnknownKey
from .types import Ask, Balance, Grant, Limits, Spent, Tenant

__all__ = [
    "Ask",
    "Balance",
    "BudgetError",
    "BudgetExceeded",
    "Grant",
    "Limits",
    "NeverFits",
    "Spent",
    "StoreUnavailable",
    "Tenant",
    "UnknownKey",
]
