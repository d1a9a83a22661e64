"""vLLM's CPU build, its engine loop in this process: no HTTP and no second process in between."""

from __future__ import annotations

import os
import time

from bench.peers.player import Event
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind


class Vllm:
    def __init__(self, model: str) -> None:
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=model,
                dtype="bfloat16",
                max_model_len=4096,
                enforce_eager=True,
                enable_prefix_caching=True,
                max_num_seqs=64,
                max_num_batched_tokens=2048,
                skip_tokenizer_init=True,
                disable_log_stats=True,
            )
        )
        self._plays = 0
        self.pids = [os.getpid()]

    def add(self, key: int, prompt: list[int], new_tokens: int) -> None:
        self._plays += 1
        params = SamplingParams(
            temperature=0.0,
            max_tokens=new_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._engine.add_request(f"{key}-{self._plays}", TokensPrompt(prompt_token_ids=prompt), params)

    def step(self) -> list[Event]:
        outputs = self._engine.step()
        now = time.perf_counter()
        return [
            Event(int(one.request_id.split("-")[0]), list(one.outputs[0].token_ids), now)
            for one in outputs
            if one.outputs and one.outputs[0].token_ids
        ]

    def close(self) -> None: ...


def open_driver(model: str, threads: int) -> Vllm:
    return Vllm(model)
