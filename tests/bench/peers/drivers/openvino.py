"""OpenVINO GenAI's continuous batching pipeline, stepped in this process."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
from bench.peers.player import Event


class OpenVino:
    def __init__(self, model: str, threads: int, properties: dict[str, Any]) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = 512
        scheduler.max_num_seqs = 64
        scheduler.cache_size = 2
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        hints = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", **properties}
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", hints)
        self._open: dict[int, tuple[int, Any, int]] = {}
        self._plays = 0
        self.pids = [os.getpid()]

    def add(self, key: int, prompt: list[int], new_tokens: int) -> None:
        self._plays += 1
        config = genai.GenerationConfig(
            max_new_tokens=new_tokens, min_new_tokens=new_tokens, ignore_eos=True, do_sample=False
        )
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        self._open[self._plays] = (key, self._pipeline.add_request(self._plays, ids, config), new_tokens)

    def step(self) -> list[Event]:
        self._pipeline.step()
        now = time.perf_counter()
        events = []
        for number, (key, handle, left) in list(self._open.items()):
            ids: list[int] = []
            while handle.can_read():
                ids += next(iter(handle.read().values())).generated_ids
            if ids:
                events.append(Event(key, ids, now))
                self._open[number] = (key, handle, left - len(ids))
                if left == len(ids):
                    del self._open[number]
        return events

    def close(self) -> None: ...


def open_driver(model: str, threads: int, properties: dict[str, Any]) -> OpenVino:
    return OpenVino(model, threads, properties)
