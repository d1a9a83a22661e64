"""From a key to its tenant."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiergate.budget import BadSetting, Keyring, Tenant, TenantSpec, UnknownKey


def hashed(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def ring() -> Keyring:
    return Keyring({"a": TenantSpec(keys=("one", hashed("two"))), "b": TenantSpec(keys=("three",), day_tokens=5)})


def test_plain_and_hashed_keys_find_their_tenant() -> None:
    keys = ring()
    assert not keys.open
    assert keys.find("one") == keys.find("two") == Tenant(id="a")
    assert keys.find("three") == Tenant(id="b", day_tokens=5)
    assert [tenant.id for tenant in keys.tenants] == ["a", "b"]


@given(st.none() | st.text())
def test_any_other_key_is_unknown(key: str | None) -> None:
    if key not in ("one", "two", "three"):
        with pytest.raises(UnknownKey) as caught:
            ring().find(key)
        assert not key or len(key) < 4 or key not in str(caught.value)


@pytest.mark.parametrize("key", [hashed("one"), hashed("two"), "\ud800", "ONE", "one\0"])
def test_a_hash_or_a_near_miss_is_no_key(key: str) -> None:
    with pytest.raises(UnknownKey):
        ring().find(key)


@pytest.mark.parametrize("key", [None, "", "whatever"])
def test_without_keys_everybody_is_local(key: str | None) -> None:
    assert Keyring({}).open
    assert Keyring({}).find(key) == Tenant(id="local")
    assert Keyring({"local": TenantSpec(max_tokens=9)}).find(key) == Tenant(id="local", max_tokens=9)


@pytest.mark.parametrize(
    ("tenants", "where"),
    [
        ({"a": TenantSpec(keys=("",))}, "tenants.a.keys[0]"),
        ({"a": TenantSpec(keys=("x", " y"))}, "tenants.a.keys[1]"),
        ({"a": TenantSpec(keys=("sha256:12",))}, "tenants.a.keys[0]"),
        ({"a": TenantSpec(keys=("x",)), "b": TenantSpec(keys=("x",))}, "tenants.b.keys[0]"),
        ({"a": TenantSpec(keys=("x", hashed("x")))}, "tenants.a.keys[1]"),
        ({"a": TenantSpec()}, "tenants.a.keys"),
        ({"a": TenantSpec(keys=("x",)), "local": TenantSpec()}, "tenants.local.keys"),
        ({"a": TenantSpec(keys=("x",), policy="nosuch")}, "tenants.a.policy"),
        ({"a": TenantSpec(keys=("x",), policy="../fixed")}, "tenants.a.policy"),
    ],
)
def test_a_ring_that_makes_no_sense_is_refused(tenants: dict[str, TenantSpec], where: str) -> None:
    with pytest.raises(BadSetting) as caught:
        Keyring(tenants)
    assert caught.value.where == where


def test_a_bad_key_is_not_told() -> None:
    with pytest.raises(BadSetting) as caught:
        Keyring({"a": TenantSpec(keys=("secret",)), "b": TenantSpec(keys=("secret",))})
    assert "secret" not in str(caught.value)
