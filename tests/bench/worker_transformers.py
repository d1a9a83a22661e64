"""Benchmark worker: Hugging Face transformers, static batch (`generate`) and its continuous batching, in bf16.

Reads one JSON job a line from stdin, `{"how", "prompts", "new_tokens"}`, and writes one JSON result a line:
`{"seconds", "ttft": [seconds a request], "tokens"}`. Greedy, end-of-sequence ignored.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria
from transformers.generation.configuration_utils import ContinuousBatchingConfig


class FirstToken(StoppingCriteria):
    """Never stops; remembers when the first token of the batch was there."""

    def __init__(self) -> None:
        self.at: float | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if self.at is None:
            self.at = time.perf_counter()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def static_batch(model: Any, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    first = FirstToken()
    begin = time.perf_counter()
    out = model.generate(
        ids,
        attention_mask=mask,
        do_sample=False,
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        pad_token_id=0,
        stopping_criteria=[first],
    )
    seconds = time.perf_counter() - begin
    assert first.at is not None
    return {
        "seconds": seconds,
        "ttft": [first.at - begin] * len(prompts),
        "tokens": (out.shape[1] - longest) * len(prompts),
    }


def continuous(model: Any, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
    config = GenerationConfig(do_sample=False, max_new_tokens=new_tokens, eos_token_id=-1, pad_token_id=0)
    begin = time.perf_counter()
    out = model.generate_batch(
        prompts,
        generation_config=config,
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=32, num_blocks=4096, max_batch_tokens=512, allow_block_sharing=False
        ),
        record_timestamps=True,
        warmup=False,
    )
    seconds = time.perf_counter() - begin
    errors = [o.error for o in out.values() if o.error]
    if errors:
        raise RuntimeError(errors[0])
    return {
        "seconds": seconds,
        "ttft": [o.timestamps[0] - begin for o in out.values() if o.timestamps],
        "tokens": sum(len(o.generated_tokens) for o in out.values()),
    }


def main() -> None:
    folder = sys.argv[1]
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints goes to stderr
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    model.generation_config.eos_token_id = None
    print(json.dumps({"ready": True}), file=results)
    for line in sys.stdin:
        job = json.loads(line)
        run = static_batch if job["how"] == "generate" else continuous
        with torch.inference_mode():
            try:
                result = run(model, job["prompts"], job["new_tokens"])
            except Exception as error:
                result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), file=results)


if __name__ == "__main__":
    main()
