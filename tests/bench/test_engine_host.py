"""The benchmark of the engine's own work measures what it says."""

from __future__ import annotations

import pytest
from bench.engine_host import KINDS, measure


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_draws_for_every_row(kind: str) -> None:
    measured = measure(3, kind, repeat=False, cold=False, batches=1)
    assert measured["tokens"] == pytest.approx(1.0)
    assert measured["us"] > 0
    assert measured["floor"] > 0


def test_calls_of_many_tokens_are_told_apart() -> None:
    assert measure(2, "plain", repeat=True, cold=True, batches=1)["tokens"] > 1
