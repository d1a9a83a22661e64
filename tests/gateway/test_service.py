from __future__ import annotations

from pathlib import Path

from fakes.tier import FakeTier, FakeTiers
from tiergate.budget import Keyring, Ledger, open_store
from tiergate.gateway.config import RouterSpec, Settings
from tiergate.gateway.route import View
from tiergate.gateway.service import Service
from tiergate.tiers import TierSpec


def test_tiers_are_seen_in_the_order_of_the_ladder_and_as_they_are_now(tmp_path: Path) -> None:
    tiers = {name: TierSpec(model=name) for name in ("deep", "side", "fast")}
    settings = Settings(tiers=tiers, router=RouterSpec(ladder=("fast", "deep")))
    fakes = FakeTiers(*(FakeTier(name) for name in tiers))
    service = Service(settings, fakes, Ledger(open_store("memory:", folder=tmp_path)), Keyring({}))
    assert [(one.name, one.on_ladder) for one in service.views()] == [("fast", True), ("deep", True), ("side", False)]
    fakes.tiers["fast"].ready = False
    assert service.views()[0] == View("fast", frozenset({"fast", "fake-fast"}), ready=False, on_ladder=True)
