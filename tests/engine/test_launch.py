"""The engine as it is shipped: launched by its own command, on real (tiny) models, held to what transformers says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from fakes.checkpoints import tiny_checkpoint, tiny_model
from support.cores import request
from support.engine_socket import EngineSocket
from tiergate.engine import EngineConfig, LaneConfig, launch
from tiergate.engine.messages import Generate

PROMPTS = [[1, *range(5, 5 + n)] for n in (1, 16, 33, 38, 40)]
LONG = [1, *(7 + 11 * i % 80 for i in range(120))]


@pytest.fixture(scope="module")
def models() -> dict[str, transformers.PreTrainedModel]:
    return {"dense": tiny_model("llama"), "experts": tiny_model("qwen3_moe")}


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineSocket]:
    """Two models in one process, with a cache small enough that sequences are preempted."""
    home: Path = tmp_path_factory.mktemp("models")
    lanes = tuple(
        LaneConfig(
            name=name,
            model=str(tiny_checkpoint(home / name, arch)),
            precision="fp32",
            blocks=24,
            block_size=8,
            max_batch_tokens=24,
            max_sequences=8,
        )
        for name, arch in (("dense", "llama"), ("experts", "qwen3_moe"))
    )
    engine = launch(EngineConfig(lanes=lanes, threads=1))
    socket = EngineSocket(engine.address, patience=60.0)
    try:
        socket.wait_ready()
        yield socket
    finally:
        socket.close()
        engine.stop()


def greedy(model: transformers.PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    torch.set_num_threads(1)
    with torch.inference_mode():
        ids = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)
    return ids[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def test_both_lanes_say_what_transformers_says(
    socket: EngineSocket, models: dict[str, transformers.PreTrainedModel]
) -> None:
    prompts = [*PROMPTS, LONG]
    requests: list[Generate] = [
        request(f"{name}-{i}-{again}", prompt, lane=name, max_tokens=48)
        for again in range(3)
        for name in models
        for i, prompt in enumerate(prompts)
    ]
    outcomes = socket.run(requests)
    for name, model in models.items():
        for i, prompt in enumerate(prompts):
            expected = greedy(model, prompt, 48)
            for again in range(3):
                assert outcomes[f"{name}-{i}-{again}"].ids == expected
    stats = socket.stats()
    for lane in stats.lanes.values():
        assert lane.active == 0
        assert lane.preemptions > 0
        assert lane.cached_tokens > 0


def test_a_seed_gives_the_same_answer_in_any_company(socket: EngineSocket) -> None:
    seeded = request("x", LONG, lane="experts", temperature=1.0, top_p=0.9, seed=5, max_tokens=48)
    alone = socket.run([seeded])["x"].ids
    others = [request(f"{i}", prompt, lane="experts", temperature=1.0) for i, prompt in enumerate(PROMPTS)]
    assert socket.run([*others, seeded])["x"].ids == alone
