"""Speculation on the native core: the same tokens, bit for bit, as without, in every precision, greedy and sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.checkpoints import tiny_checkpoint
from support.cores import Clock, run
from support.cores import request as ask
from support.native import thread_pool
from tiergate.engine import LaneConfig
from tiergate.engine.block_pool import keyed_digest
from tiergate.engine.core import EngineCore
from tiergate.engine.lane import Lane
from tiergate.engine.messages import Generate
from tiergate.engine.runners.cpu import open as open_runner

MANNERS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.3, "seed": 1},
    {"temperature": 0.5, "top_p": 0.8, "top_k": 10, "seed": 2},
    {"logit_bias": {5: 2.0, 6: 2.0}, "temperature": 0.2, "seed": 3},
    {"presence_penalty": 0.3},
)


def requests() -> list[Generate]:
    loop = [7, 11, 13, 17, 19]
    return [
        ask(str(i), [*loop * 3, 40 + i, *loop[: 3 + i % 2]], max_tokens=70, ignore_eos=True, **manner)
        for i, manner in enumerate(MANNERS)
    ]


@pytest.mark.parametrize(
    ("arch", "precision", "kv"), [("llama", "bf16", "bf16"), ("mixtral", "int8", "int8"), ("qwen3", "int4", "bf16")]
)
def test_speculated_is_plain(tmp_path: Path, arch: str, precision: Any, kv: Any) -> None:
    folder = tiny_checkpoint(tmp_path, arch, hidden_size=96, intermediate_size=160, num_attention_heads=6)
    answers, accepted = [], []  # the clock stands still, so that no step is dearer than another
    for drafting in (True, False):
        config = LaneConfig(
            name="a", model=str(folder), precision=precision, kv_precision=kv, blocks=80, drafting=drafting
        )
        runner = open_runner(config, thread_pool(1))
        lane = Lane(config, runner, digest=keyed_digest(b"test"), clock=Clock())
        core = EngineCore([lane], seeds=lambda: 7)
        heard = run(core, requests())
        answers.append({id: one.ids for id, one in heard.items()})
        accepted.append(core.stats().lanes["a"].accepted_tokens)
    assert answers[0] == answers[1]
    assert accepted[0] > 0
    assert accepted[1] == 0
