from __future__ import annotations

import pytest

from tiergate.budget import Keyring, TenantSpec, UnknownKey
from tiergate.gateway.auth import identify, read_key
from tiergate.gateway.errors import MissingKey

KEYS = Keyring({"a": TenantSpec(keys=("sk-a",)), "b": TenantSpec(keys=("sk-b",))})


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, None),
        ({b"authorization": b"Bearer sk-a"}, "sk-a"),
        ({b"authorization": b"bearer  sk-a "}, "sk-a"),
        ({b"authorization": b"Basic sk-a"}, None),
        ({b"authorization": b"Bearer "}, None),
        ({b"authorization": b"Bearer"}, None),
        ({b"x-api-key": b" sk-b "}, "sk-b"),
        ({b"x-api-key": b""}, None),
        ({b"authorization": b"Basic x", b"x-api-key": b"sk-b"}, "sk-b"),
        ({b"authorization": b"Bearer sk-a", b"x-api-key": b"sk-b"}, "sk-a"),
        ({b"authorization": b"Bearer \xff\xfe"}, "\xff\xfe"),
    ],
)
def test_where_the_key_is(headers: dict[bytes, bytes], key: str | None) -> None:
    assert read_key(headers) == key


def test_a_key_names_its_tenant() -> None:
    assert identify(KEYS, {b"x-api-key": b"sk-b"}).id == "b"


def test_no_key_and_a_wrong_key_are_told_apart() -> None:
    with pytest.raises(MissingKey):
        identify(KEYS, {})
    with pytest.raises(UnknownKey):
        identify(KEYS, {b"x-api-key": b"sk-c"})


def test_without_keys_anybody_is_the_local_tenant() -> None:
    assert identify(Keyring({}), {}).id == identify(Keyring({}), {b"x-api-key": b"anything"}).id == "local"
