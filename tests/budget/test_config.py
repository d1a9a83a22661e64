"""The tables of the configuration."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from tiergate.budget import BadSetting, BudgetSpec, Tenant, TenantSpec


def test_a_tenant_table_has_the_fields_of_a_tenant() -> None:
    table = {f.name: (f.type, f.default) for f in fields(TenantSpec)}
    assert table.pop("keys")
    assert table == {f.name: (f.type, f.default) for f in fields(Tenant) if f.name != "id"}


def test_every_field_reaches_the_tenant() -> None:
    values: dict[str, Any] = {
        "policy": "fixed", "mode": "soft", "max_thinking": 1, "default_thinking": 2, "max_tokens": 3,
        "answer_reserve": 4, "day_tokens": 5, "priority": 6, "salt": "s", "models": ("m",),
    }  # fmt: skip
    assert {f.name for f in fields(TenantSpec)} == values.keys() | {"keys"}
    assert TenantSpec(**values).tenant("a") == Tenant(id="a", **values)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_thinking", -1), ("default_thinking", -1), ("max_tokens", 0), ("answer_reserve", -1), ("day_tokens", -1)],
)
def test_a_limit_out_of_range_is_named(name: str, value: int) -> None:
    limit: dict[str, Any] = {name: value}
    with pytest.raises(BadSetting, match=rf"tenants\.a\.{name}: is {value + 1} or more, not {value}"):
        replace(TenantSpec(), **limit).tenant("a")


@pytest.mark.parametrize("id", ["", "a b", "ä", "a" * 65, "\ud800"])
def test_an_id_is_a_plain_word(id: str) -> None:
    with pytest.raises(BadSetting):
        TenantSpec().tenant(id)


@pytest.mark.parametrize("lease", [0.0, -1.0, 1e9, float("nan")])
def test_a_lease_is_some_seconds(lease: float) -> None:
    with pytest.raises(BadSetting, match=r"budget\.lease"):
        BudgetSpec(lease=lease)
