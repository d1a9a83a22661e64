"""Checkpoints in the published layouts of quantised weights, made of plain ones.

Packing as in AutoAWQ's `WQLinear_GEMM.from_linear`, AutoGPTQ's `QuantLinear.pack` and compressed-tensors'
`pack_to_int32`; every writer also returns what the weights are by these layouts' own formulas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
_ENDINGS = ("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight")
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class Grid:
    """A matrix rounded to a grid: weight = scale * (code - zero)."""

    codes: torch.Tensor
    """int32 [n, k]."""
    scale: torch.Tensor
    """float16 [n, groups]."""
    zero: torch.Tensor
    """int32 [n, groups]."""

    def values(self, groups: torch.Tensor | None = None) -> torch.Tensor:
        """float32 [n, k]; `groups` names each input's group where they are no neighbours."""
        k = self.codes.shape[1]
        order = torch.arange(k) // (k // self.scale.shape[1]) if groups is None else groups
        return (self.codes.float() - self.zero.float()[:, order]) * self.scale.float()[:, order]


def grid(weight: torch.Tensor, group: int, *, symmetric: bool = False) -> Grid:
    """`weight` [n, k] rounded to 16 levels in groups of so many inputs (0: a whole row)."""
    k = weight.shape[1]
    parts = weight.float().view(len(weight), -1, group or k)
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    if symmetric:
        scale = (torch.maximum(-low, high) / 7).half().clamp(min=2**-14)
        zero = torch.full_like(scale, 8, dtype=torch.int32)
    else:
        scale = ((high - low) / 15).half().clamp(min=2**-14)
        zero = (-low / scale.float()).round().clamp(0, 15).int()
    codes = (parts / scale.float()[..., None]).round().int() + zero[..., None]
    return Grid(codes.clamp(0, 15).view(weight.shape), scale, zero)


def pack_words(values: torch.Tensor, dim: int, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Eight neighbours along `dim` of int32 `values` a word, padded with zeros; the `order[i]`-th in bits 4 i up."""
    rows = values.movedim(dim, -1)
    rows = torch.nn.functional.pad(rows, (0, -rows.shape[-1] % 8)).long().unflatten(-1, (-1, 8))
    packed = sum((rows[..., at] & 15) << (4 * place) for place, at in enumerate(order))
    assert isinstance(packed, torch.Tensor)
    signed = torch.where(packed >= 2**31, packed - 2**32, packed).int()
    return signed.movedim(-1, dim).contiguous()


def write_awq(folder: Path, group: int = 64) -> Tensors:
    """Turn the checkpoint in `folder` into AutoAWQ's; what its matrices have become, by plain name."""

    def pack(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        made = grid(weight, group)
        parts = {
            "qweight": pack_words(made.codes.T, 1, _AWQ_ORDER),
            "qzeros": pack_words(made.zero.T, 1, _AWQ_ORDER),
            "scales": made.scale.T.contiguous(),
        }
        return parts, made.values()

    return _rewrite(folder, pack, {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"})


def write_gptq(
    folder: Path, group: int = 64, *, symmetric: bool = True, act_order: bool = False, form: str = "gptq"
) -> Tensors:
    """Turn the checkpoint in `folder` into AutoGPTQ's (`group` -1: whole rows); its matrices by plain name.

    With `act_order` inputs are dealt out over the groups as `desc_act` does.
    """

    def pack(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        k = weight.shape[1]
        made = grid(weight, max(group, 0), symmetric=symmetric)
        order = torch.arange(k) // (group if group > 0 else k)
        if act_order:
            order = order[torch.randperm(k, generator=torch.Generator().manual_seed(k))]
        stored = made.zero - (1 if form == "gptq" else 0)
        parts = {
            "qweight": pack_words(made.codes, 1).T.contiguous(),
            "qzeros": pack_words(stored.T, 1),
            "scales": made.scale.T.contiguous(),
            "g_idx": order.int(),
        }
        return parts, made.values(order)

    config = {"quant_method": "gptq", "bits": 4, "group_size": group, "sym": symmetric, "desc_act": act_order}
    return _rewrite(folder, pack, config | ({} if form == "gptq" else {"checkpoint_format": form}))


def write_packed(folder: Path, group: int = 64, *, symmetric: bool = True) -> Tensors:
    """Turn the checkpoint in `folder` into compressed-tensors' of 4 bits (`pack-quantized`); matrices by plain name."""

    def pack(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        made = grid(weight, group, symmetric=symmetric)
        parts = {
            "weight_packed": pack_words(made.codes, 1),
            "weight_scale": made.scale,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            parts["weight_zero_point"] = pack_words(made.zero, 0)
        return parts, made.values()

    weights = {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group" if group else "channel"}
    return _rewrite(folder, pack, _compressed("pack-quantized", weights | ({"group_size": group} if group else {})))


def write_rows(folder: Path) -> Tensors:
    """Turn the checkpoint in `folder` into compressed-tensors' W8A8 (`int-quantized`); its matrices by plain name."""

    def pack(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        scale = (weight.abs().amax(1, keepdim=True) / 127).bfloat16()
        values = (weight / scale.float()).round().clamp(-127, 127).to(torch.int8)
        return {"weight": values, "weight_scale": scale}, values.float() * scale.float()

    return _rewrite(folder, pack, _compressed("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}))


def _compressed(form: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": dict(weights)}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def _rewrite(
    folder: Path, pack: Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]], config: Mapping[str, Any]
) -> Tensors:
    plain = load_file(folder / "model.safetensors")
    stored: Tensors = {}
    values: Tensors = {}
    for name, tensor in plain.items():
        if name.endswith(_ENDINGS):
            parts, values[name] = pack(tensor)
            stored |= {name.removesuffix("weight") + part: each for part, each in parts.items()}
        else:
            stored[name] = tensor
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": dict(config)}))
    return values
