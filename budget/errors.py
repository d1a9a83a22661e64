"""What can go wrong with a budget. The classes carry facts; the gateway's table turns them into HTTP."""

from __future__ import annotations


class BudgetError(Exception):
    """Base of this room."""


class BudgetExceeded(BudgetError):
    """A limit is used up. `retry_after` is seconds until it frees, None if waiting alone will not help."""

    def __init__(
        self, *, scope: str, window: str, limit: int, used: int, asked: int, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{scope}: {window} limit of {limit} tokens: {used} used or reserved, {asked} asked for")
        self.scope = scope
        self.window = window
        self.limit = limit
        self.used = used
        self.asked = asked
        self.retry_after = retry_after


class NeverFits(BudgetError):
    """The request is larger than the whole limit, so it can never be admitted."""

    def __init__(self, *, scope: str, window: str, limit: int, asked: int) -> None:
        super().__init__(
            f"{scope}: the request asks for {asked} tokens but the {window} limit is {limit}; lower max_tokens"
        )
        self.scope = scope
        self.window = window
        self.limit = limit
        self.asked = asked


class StoreUnavailable(BudgetError):
    """The store did not answer."""


class UnknownKey(BudgetError):
    """No tenant owns this key."""


class BadSetting(BudgetError):
    """A setting of this room makes no sense. `where` is its key path, as `tenants.alice.keys[0]`."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")
        self.where = where
