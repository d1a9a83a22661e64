"""transformers' `generate`: whoever waits is one left-padded batch; who comes later waits for its end."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from bench.peers.player import Event
from transformers import AutoModelForCausalLM, StoppingCriteria


class Watch(StoppingCriteria):
    """Never stops; remembers when each step was done."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.at.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Static:
    def __init__(self, model: str) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, attn_implementation="sdpa")
        self._model.eval().generation_config.eos_token_id = None
        self._waiting: list[tuple[int, list[int], int]] = []
        self.pids = [os.getpid()]

    def add(self, key: int, prompt: list[int], new_tokens: int) -> None:
        self._waiting.append((key, prompt, new_tokens))

    @torch.inference_mode()
    def step(self) -> list[Event]:
        batch, self._waiting = self._waiting, []
        longest, most = max(len(prompt) for _, prompt, _ in batch), max(new for _, _, new in batch)
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for _, prompt, _ in batch])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for _, prompt, _ in batch])
        watch = Watch()
        out = self._model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            min_new_tokens=most,
            max_new_tokens=most,
            pad_token_id=0,
            stopping_criteria=[watch],
        )[:, longest:].tolist()
        return [
            Event(key, [out[row][step]], at)
            for step, at in enumerate(watch.at)
            for row, (key, _, new) in enumerate(batch)
            if step < new
        ]

    def close(self) -> None: ...


def open_driver(model: str, threads: int) -> Static:
    torch.set_num_threads(threads)
    return Static(model)
