"""The norm keeps transformers' rounding, so that bf16 hidden states follow theirs."""

from __future__ import annotations

import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tiergate.kernels.cases import Draw
from tiergate.kernels.ops.norm_linear import rms_norm


def test_bf16_norm_is_transformers_norm_to_the_bit() -> None:
    draw = Draw(torch.bfloat16)
    x, weight = draw.normal(50, 576), draw.norm(576)
    theirs = LlamaRMSNorm(576, eps=1e-5)
    theirs.weight = torch.nn.Parameter(weight)
    with torch.inference_mode():
        ours, want = rms_norm(x, weight, 1e-5), theirs(x)
    # One rounding step of bf16 is 2^-8 of the value; sums of another order may turn a rare one.
    assert (ours != want).float().mean() <= 1e-3
    torch.testing.assert_close(ours, want, rtol=2**-7, atol=0)
