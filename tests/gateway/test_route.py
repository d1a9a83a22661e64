from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.tier import FakeTier
from tiergate.budget import Tenant
from tiergate.gateway.classify import Complexity, label_of
from tiergate.gateway.config import RouterSpec
from tiergate.gateway.errors import ModelRefused, UnknownModel
from tiergate.gateway.route import Route, View, decide, names_of, serves_auto
from tiergate.tiers import ChatRequest, Message, TierSpec

FAST = View("fast", frozenset({"fast", "small", "gpt-4o-mini"}), ready=True, on_ladder=True)
DEEP = View("deep", frozenset({"deep", "big"}), ready=True, on_ladder=True)
SIDE = View("side", frozenset({"side"}), ready=True, on_ladder=False)
ANYONE = Tenant(id="local")
SPEC = RouterSpec(climb_from=0.3, deep_from=0.6)


def request(model: str = "auto", **fields: object) -> ChatRequest:
    return ChatRequest(model=model, messages=(Message(role="user", content="x"),), **fields)  # type: ignore[arg-type]


def routed(
    score: float = 0.1, views: tuple[View, ...] = (FAST, DEEP, SIDE), tenant: Tenant = ANYONE, **fields: object
) -> Route:
    return decide(request(**fields), Complexity(score, label_of(score), ("maths",)), views, tenant, SPEC)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("score", "ladder", "reason"),
    [
        (0.0, ("fast",), "maths"),
        (0.29, ("fast",), "maths"),
        (0.3, ("fast", "deep"), "maths; may climb"),
        (0.6, ("deep",), "maths"),
    ],
)
def test_auto_follows_the_score(score: float, ladder: tuple[str, ...], reason: str) -> None:
    route = routed(score)
    assert (route.ladder, route.reason) == (ladder, reason)


@pytest.mark.parametrize("name", ["fast", "small", "gpt-4o-mini"])
def test_a_tier_goes_by_all_its_names(name: str) -> None:
    assert routed(0.9, model=name).ladder == ("fast",)


def test_a_tier_beside_the_ladder_must_be_named() -> None:
    assert routed(model="side").ladder == ("side",)
    assert all("side" not in routed(score / 10).ladder for score in range(11))


def test_the_request_s_own_words_on_thinking_count() -> None:
    for fields in ({"effort": "none"}, {"effort": "minimal"}, {"thinking": 0}, {"thinking": 0, "effort": "max"}):
        assert routed(0.9, **fields).ladder == ("fast",)
    for fields in ({"effort": "high"}, {"effort": "max"}, {"thinking": 100}, {"thinking": 5, "effort": "none"}):
        assert routed(0.0, **fields).ladder == ("deep",)
    assert routed(0.9, effort="medium").ladder == ("deep",)


def test_tiers_that_are_not_ready_are_passed_over_and_that_is_said() -> None:
    away = View("fast", FAST.names, ready=False, on_ladder=True)
    route = routed(0.0, (away, DEEP))
    assert route.ladder == ("deep",)
    assert "fast not ready" in route.reason
    assert routed(0.0, (away,)).ladder == ("fast",)
    assert routed(0.0, (away, DEEP), model="fast").ladder == ("fast",)


def test_unknown_models() -> None:
    with pytest.raises(UnknownModel):
        routed(model="gpt-9")


def test_a_tenant_s_models() -> None:
    tenant = Tenant(id="t", models=("small",))
    assert routed(0.9, tenant=tenant).ladder == ("fast",)
    assert routed(0.9, tenant=tenant, model="gpt-4o-mini").ladder == ("fast",)
    with pytest.raises(ModelRefused):
        routed(tenant=tenant, model="deep")
    with pytest.raises(ModelRefused):
        routed(tenant=Tenant(id="t", models=("side",)))
    assert routed(0.9, tenant=Tenant(id="t", models=("auto",))).ladder == ("deep",)


def test_the_header() -> None:
    assert routed(0.31).header() == 'tier=fast>deep; class=simple; score=0.310; reason="maths; may climb"'


def test_the_names_of_a_tier() -> None:
    tier = FakeTier("fast", spec=TierSpec(model="somewhere/else", aliases=("quick",)))
    assert names_of(tier) == {"fast", "quick", "fake-fast"}


@given(
    st.floats(0, 1),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from([(), ("fast",), ("big",), ("auto",)]),
    st.sampled_from([None, "none", "low", "max"]),
)
def test_auto_never_leaves_its_bounds(
    score: float, ready: tuple[bool, bool], models: tuple[str, ...], effort: str | None
) -> None:
    views = (
        View("fast", FAST.names, ready=ready[0], on_ladder=True),
        View("deep", DEEP.names, ready=ready[1], on_ladder=True),
    )
    tenant = Tenant(id="t", models=models)
    route = routed(score, views, tenant, effort=effort)
    may = [one for one in views if serves_auto(tenant, one)]
    assert route.ladder
    assert set(route.ladder) <= {one.name for one in may}
    if any(one.ready for one in may):
        assert all(one.ready for one in views if one.name in route.ladder)
    assert route.header().isascii()
