"""transformers' continuous batching: its manager runs in a thread and streams results through a queue."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from bench.peers.player import Event
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

PAGE = 32
KV_TOKENS = 65_536
"""The whole pool; 1.5 GB in bf16 for 23 KB a token."""


class Continuous:
    def __init__(self, model: Any) -> None:
        self._manager = model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE, num_blocks=KV_TOKENS // PAGE, max_batch_tokens=512
            ),
        )
        self._manager.start()
        self._given: dict[str, int] = {}
        self._plays = 0
        self.pids = [os.getpid()]

    def add(self, key: int, prompt: list[int], new_tokens: int) -> None:
        self._plays += 1
        name = f"{key}-{self._plays}"
        self._given[name] = 0
        self._manager.add_request(prompt, request_id=name, max_new_tokens=new_tokens, streaming=True)

    def step(self) -> list[Event]:
        result = self._manager.get_result(timeout=1.0)
        if result is None:
            if not self._manager.is_running():
                raise RuntimeError("the manager's thread ended")
            return []
        if result.error:
            raise RuntimeError(result.error)
        name = result.request_id
        new = result.generated_tokens[self._given[name] :]
        self._given[name] += len(new)
        return [Event(int(name.split("-")[0]), list(new), time.perf_counter())] if new else []

    def close(self) -> None:
        self._manager.stop(block=True)


def open_driver(model: str, threads: int) -> Continuous:
    torch.set_num_threads(threads)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, attn_implementation="sdpa")
    return Continuous(loaded.eval())
