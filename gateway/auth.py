"""Whose request is this? Reads the key from the headers and asks the keyring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tiergate.budget import Tenant, UnknownKey

from .errors import MissingKey

Headers = Mapping[bytes, bytes]
"""By lower-case name."""


class Keys(Protocol):
    """What identifying needs of the budget room's keyring."""

    def find(self, key: str | None) -> Tenant:
        """Raises `UnknownKey`."""
        ...


def read_key(headers: Headers) -> str | None:
    """The key in `Authorization: Bearer`, else in `x-api-key`; None without either."""
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get(b"x-api-key", b"").decode("latin-1").strip() or None


def identify(keys: Keys, headers: Headers) -> Tenant:
    """Raises `MissingKey`, `UnknownKey`."""
    key = read_key(headers)
    try:
        return keys.find(key)
    except UnknownKey:
        if key is None:
            raise MissingKey from None
        raise
