"""Says how much a tenant may spend, and keeps the books."""

from .config import BudgetSpec, TenantSpec
from .errors import BadSetting, BudgetError, BudgetExceeded, NeverFits, StoreUnavailable, UnknownKey
from .keyring import Keyring
from .ledger import Ledger
from .open import open_store
from .store import Store
from .types import Ask, Balance, Grant, Limits, Spent, Tenant

__all__ = [
    "Ask",
    "BadSetting",
    "Balance",
    "BudgetError",
    "BudgetExceeded",
    "BudgetSpec",
    "Grant",
    "Keyring",
    "Ledger",
    "Limits",
    "NeverFits",
    "Spent",
    "Store",
    "StoreUnavailable",
    "Tenant",
    "TenantSpec",
    "UnknownKey",
    "open_store",
]
