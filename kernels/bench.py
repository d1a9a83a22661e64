"""Times every op at the shape of SmolLM2-135M: `python -P -m tiergate.kernels.bench [--threads N] [--dtype fp32]`.

Microseconds a call, best and median. Weights of several layers are used in turn, so that they come from memory as they
do in a model; the best of many calls is what the op costs when nothing else runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from statistics import median

import torch

from . import (
    backend_report,
    bench_attention,
    bench_linear,
    embedding,
    gated_mlp,
    linear_residual,
    lm_head,
    moe,
    norm_linear,
    pack_experts,
    pack_linear,
    paged_attention,
    plan_attention,
    rope_angles,
    rope_kv,
)
from .cases import Draw
from .dispatch import Unavailable

HIDDEN, WIDTH, HEADS, KV_HEADS, DIM, VOCAB = 576, 1536, 9, 3, 64, 49152
LAYERS, BLOCK, EPS = 12, 16, 1e-5
STEPS = {
    "decode 1 @ 256": ((1,), (256,)),
    "decode 16 @ 256": ((1,) * 16, (256,) * 16),
    "decode 64 @ 256": ((1,) * 64, (256,) * 64),
    "prefill 512": ((512,), (512,)),
    "prefill 128 @ 1024": ((128,), (1024,)),
}


def calls(queries: Sequence[int], contexts: Sequence[int], draw: Draw) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each op as a step of these sequences calls it, with layers taken in turn."""
    rows, packed = sum(queries), (HEADS + 2 * KV_HEADS) * DIM
    x, norm = draw.normal(rows, HIDDEN), draw.norm(HIDDEN)
    tables = draw.distinct(sum(contexts) // BLOCK, sum(contexts) // BLOCK).int().view(len(contexts), -1)
    positions = torch.tensor([at for q, c in zip(queries, contexts, strict=True) for at in range(c - q, c)])
    sequence = torch.tensor([s for s, q in enumerate(queries) for _ in range(q)])
    slots = tables[sequence, positions // BLOCK].long() * BLOCK + positions % BLOCK
    caches = cycle([draw.normal(tables.numel(), BLOCK, 2, KV_HEADS, DIM) for _ in range(LAYERS)])
    frequencies = 1e5 ** -torch.linspace(0, 1, DIM // 2)
    cos, sin = rope_angles(positions, frequencies, 1.0, draw.dtype)
    qkv, q = draw.normal(rows, packed), draw.normal(rows, HEADS, DIM)

    def plan() -> object:
        return plan_attention(
            tables,
            torch.tensor([0, *queries]).cumsum(0).int(),
            torch.tensor(contexts, dtype=torch.int32),
            query_lens=tuple(queries),
            context_lens=tuple(contexts),
            block_size=BLOCK,
            dtype=draw.dtype,
        )

    table = draw.weight(VOCAB, HIDDEN)
    head, logits = pack_linear(table), torch.empty((len(queries), VOCAB))
    qkvs = cycle([pack_linear(draw.weight(packed, HIDDEN)) for _ in range(LAYERS)])
    outs = cycle([pack_linear(draw.weight(HIDDEN, HEADS * DIM)) for _ in range(LAYERS)])
    ups = cycle([pack_linear(draw.weight(2 * WIDTH, HIDDEN)) for _ in range(LAYERS)])
    downs = cycle([pack_linear(draw.weight(HIDDEN, WIDTH)) for _ in range(LAYERS)])
    router = pack_linear(draw.weight(4, HIDDEN))
    experts = cycle(
        [
            pack_experts(
                draw.weight(4 * 2 * WIDTH, HIDDEN).view(4, 2 * WIDTH, HIDDEN),
                draw.weight(4 * HIDDEN, WIDTH).view(4, HIDDEN, WIDTH),
            )
            for _ in range(LAYERS // 4)
        ]
    )
    planned = plan()
    yield "embedding", lambda: embedding(draw.integers(0, VOCAB, rows), table)
    yield "plan_attention", plan
    yield "norm_linear (qkv)", lambda: norm_linear(x, norm, next(qkvs), EPS)
    yield "rope_kv", lambda: rope_kv(qkv.clone(), cos, sin, next(caches), slots)
    yield "paged_attention", lambda: paged_attention(q, next(caches), planned, DIM**-0.5)  # type: ignore[arg-type]
    yield "linear_residual (out)", lambda: linear_residual(x, next(outs), x)
    yield "gated_mlp", lambda: gated_mlp(x, norm, next(ups), next(downs), EPS)
    yield "moe (2 of 4)", lambda: moe(x, norm, router, next(experts), EPS, active=2, renormalise=True)
    yield "lm_head", lambda: lm_head(x[: len(queries)], norm, head, EPS, logits)


def timed(call: Callable[[], object], rounds: int) -> list[float]:
    """Microseconds of each call, after two that are not counted."""
    call()
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of every step in `STEPS`."""
    parser = argparse.ArgumentParser(prog="tiergate.kernels.bench", description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print(backend_report())
    for name, (queries, contexts) in STEPS.items():
        print(f"\n{name:24}{'best':>10}{'median':>10}   us, {options.threads} threads, {options.dtype}")
        with torch.inference_mode():
            for op, call in calls(
                queries, contexts, Draw({"bf16": torch.bfloat16, "fp32": torch.float32}[options.dtype])
            ):
                times = timed(call, options.rounds)
                print(f"{op:24}{min(times):10.0f}{median(times):10.0f}")
    for name, lines in (("linear kernels", bench_linear.lines), ("attention", bench_attention.lines)):
        print()
        try:
            for line in lines(rounds=7):
                print(line, flush=True)
        except Unavailable as why:
            print(f"{name}: {why}")


if __name__ == "__main__":
    main()
