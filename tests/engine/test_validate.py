"""What an engine will not start with. Requests are tried in `test_core.py`, through the core."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tiergate.engine import EngineConfig, LaneConfig
from tiergate.engine.validate import find_config_fault

LANE = LaneConfig(name="a", model="m")
GOOD = EngineConfig(lanes=(LANE, replace(LANE, name="b")))


def test_defaults_are_fine() -> None:
    assert find_config_fault(GOOD) is None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (replace(GOOD, lanes=()), "no lanes"),
        (replace(GOOD, lanes=(LANE, LANE)), "lane names repeat: a, a"),
        (replace(GOOD, lanes=(replace(LANE, block_size=0),)), "lane 'a': block_size is 0"),
        (replace(GOOD, lanes=(replace(LANE, max_sequences=0),)), "max_sequences is 0"),
        (replace(GOOD, lanes=(replace(LANE, max_batch_tokens=-1),)), "max_batch_tokens is -1"),
        (replace(GOOD, lanes=(replace(LANE, max_waiting=0),)), "max_waiting is 0"),
        (replace(GOOD, lanes=(replace(LANE, weight=0.0),)), "weight is 0.0"),
        (replace(GOOD, lanes=(replace(LANE, weight=math.nan),)), "weight is nan"),
        (replace(GOOD, client_timeout=0.0), "client_timeout is 0.0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_work_is_named(config: EngineConfig, words: str) -> None:
    fault = find_config_fault(config)
    assert fault is not None
    assert words in fault
