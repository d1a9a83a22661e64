"""The kernels' ops as plain formulas in float64, one sequence, row and head at a time where that is plainest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tiergate.kernels import AttentionPlan, Experts, Linear

Tensor = torch.Tensor


def dense(linear: Linear) -> tuple[Tensor, Tensor | float]:
    """Weight [out, in] and bias in float64."""
    weight = linear.weight.to_dense() if linear.packed else linear.weight
    return weight.double(), 0.0 if linear.bias is None else linear.bias.double()


def apply(x: Tensor, linear: Linear) -> Tensor:
    weight, bias = dense(linear)
    return x.double() @ weight.T + bias


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def swiglu(x: Tensor, gate_up: Linear, down: Linear) -> Tensor:
    both = apply(x, gate_up)
    gate, up = both[:, : both.shape[1] // 2], both[:, both.shape[1] // 2 :]
    return apply(gate / (1 + (-gate).exp()) * up, down)


def embedding(token_ids: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    rows = [table[int(token)] for token in token_ids]
    return (torch.stack(rows) if rows else table[:0],)


def norm_linear(x: Tensor, norm: Tensor, linear: Linear, eps: float) -> tuple[Tensor, ...]:
    return (apply(rms(x, norm, eps), linear),)


def linear_residual(x: Tensor, linear: Linear, residual: Tensor) -> tuple[Tensor, ...]:
    return (residual.double() + apply(x, linear),)


def gated_mlp(x: Tensor, norm: Tensor, gate_up: Linear, down: Linear, eps: float) -> tuple[Tensor, ...]:
    return (x.double() + swiglu(rms(x, norm, eps), gate_up, down),)


def lm_head(
    x: Tensor, norm: Tensor, head: Linear, eps: float, out: Tensor | None = None, statistics: Tensor | None = None
) -> tuple[Tensor, ...]:
    logits = apply(rms(x, norm, eps), head)
    if statistics is None:
        return (logits,)
    ordered = logits.sort(-1, descending=True).values
    p = (logits.exp().T / logits.exp().sum(-1)).T
    return logits, torch.stack((ordered[:, 0], ordered[:, 1], logits.exp().sum(-1).log(), -(p * p.log()).sum(-1)), 1)


def moe(
    x: Tensor,
    norm: Tensor,
    router: Linear,
    weights: Experts,
    eps: float,
    *,
    active: int,
    renormalise: bool,
    experts: Tensor | None = None,
) -> tuple[Tensor, ...]:
    normed = rms(x, norm, eps)
    result = x.double().clone()
    for row, logits in enumerate(apply(normed, router)):
        p = logits.exp() / logits.exp().sum()
        chosen = p.argsort(descending=True)[: active if experts is None else min(active, int(experts[row]))]
        total = p[chosen].sum() if renormalise else 1.0
        for expert in chosen.tolist():
            output = swiglu(normed[row : row + 1], weights.gate_up[expert], weights.down[expert])[0]
            result[row] += p[expert] / total * output
    return (result,)


def rope_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cache: Tensor,
    slots: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> tuple[Tensor, ...]:
    kv_heads, dim = cache.shape[3:]
    half = cos.shape[1] // 2
    x = qkv.double().reshape(len(qkv), qkv.shape[1] // dim, dim)
    heads = x.shape[1] - 2 * kv_heads
    q, k, v = x[:, :heads], x[:, heads : heads + kv_heads], x[:, heads + kv_heads :]
    if q_norm is not None and k_norm is not None:
        q, k = rms(q, q_norm, eps), rms(k, k_norm, eps)
    turn = torch.complex(cos[:, half:].double(), sin[:, half:].double())[:, None]

    def rotate(x: Tensor) -> Tensor:
        turned = torch.complex(x[..., :half], x[..., half : 2 * half]) * turn
        return torch.cat((turned.real, turned.imag, x[..., 2 * half :]), -1)

    stored = cache.double()
    for row, slot in enumerate(slots.tolist()):
        stored[slot // cache.shape[1], slot % cache.shape[1], 0] = rotate(k)[row]
        stored[slot // cache.shape[1], slot % cache.shape[1], 1] = v[row]
    return rotate(q), stored


def paged_attention(q: Tensor, cache: Tensor, plan: AttentionPlan, scale: float) -> tuple[Tensor, ...]:
    block, kv_heads = cache.shape[1], cache.shape[3]
    out = torch.zeros(q.shape, dtype=torch.float64)
    for index, context in enumerate(plan.seq_lens.tolist()):
        start, end = plan.query_starts[index : index + 2].tolist()
        for row in range(start, end):
            last = context - (end - row)
            first = max(0, last + 1 - plan.window) if plan.window else 0
            seen = [cache[plan.block_tables[index, at // block], at % block].double() for at in range(first, last + 1)]
            for head in range(q.shape[1]):
                group = head // (q.shape[1] // kv_heads)
                keys, values = torch.stack([kv[0, group] for kv in seen]), torch.stack([kv[1, group] for kv in seen])
                scores = (keys @ q[row, head].double() * scale).exp()
                out[row, head] = scores @ values / scores.sum()
    return (out.flatten(1),)


FORMULAS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    formula.__name__: formula
    for formula in (embedding, gated_mlp, linear_residual, lm_head, moe, norm_linear, paged_attention, rope_kv)
}


def outputs(name: str, returned: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Tensor, ...]:
    """Everything an op has produced, in the order of its formula: what it returned and what it wrote elsewhere."""
    if name == "rope_kv":
        return returned, args[3]
    if name == "lm_head" and options:
        return returned, options["statistics"][: len(returned)]
    return (returned,)
