"""Whose key is this?"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

from . import policies
from .config import TenantSpec
from .errors import BadSetting, UnknownKey
from .extensions import load
from .types import Tenant

OPEN_TENANT = "local"
"""The tenant of every caller while no keys are configured."""


class Keyring:
    """Every tenant by its keys. Only digests are kept, never a key.

    A key is looked up by its SHA-256 digest, so the time a lookup takes says nothing about how much of a guess was
    right: one changed bit of the guess changes the whole digest, and equal digests are compared in constant time.
    """

    def __init__(self, tenants: Mapping[str, TenantSpec]) -> None:
        """Raises `BadSetting`: a key is empty, malformed or claimed twice, a tenant has none, a policy is unknown."""
        self._tenants = {id: spec.tenant(id) for id, spec in tenants.items()}
        self._owners: dict[bytes, tuple[bytes, Tenant]] = {}
        self._open: Tenant | None = None
        for id, spec in tenants.items():
            load(policies, spec.policy, f"tenants.{id}.policy")
            for place, key in enumerate(spec.keys):
                self._add(key, self._tenants[id], f"tenants.{id}.keys[{place}]")
        if not self._owners:
            self._open = self._tenants.setdefault(OPEN_TENANT, Tenant(id=OPEN_TENANT))
        for id, spec in tenants.items():
            if not spec.keys and self._tenants[id] is not self._open:
                raise BadSetting(f"tenants.{id}.keys", "a tenant without keys can never be reached")

    def _add(self, key: str, tenant: Tenant, where: str) -> None:
        if key.startswith("sha256:"):
            if not re.fullmatch(r"sha256:[0-9a-fA-F]{64}", key):
                raise BadSetting(where, "a hashed key is sha256: and 64 hex digits")
            digest = bytes.fromhex(key[7:])
        elif not key or key.strip() != key:
            raise BadSetting(where, "a key is not empty, and neither begins nor ends with a space")
        else:
            digest = _digest(key)
        if digest in self._owners:
            raise BadSetting(where, f"this key is also one of {self._owners[digest][1].id!r}")
        self._owners[digest] = (digest, tenant)

    @property
    def open(self) -> bool:
        """Whether anybody may come in, because no keys are configured."""
        return self._open is not None

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        return tuple(self._tenants.values())

    def find(self, key: str | None) -> Tenant:
        """The tenant who owns this key; while the ring is open, the local tenant whatever the key.

        Raises `UnknownKey`.
        """
        if self._open is not None:
            return self._open
        if key:
            digest = _digest(key)
            found = self._owners.get(digest)
            if found is not None and hmac.compare_digest(found[0], digest):
                return found[1]
        raise UnknownKey("no tenant owns this key" if key else "a key is needed")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
