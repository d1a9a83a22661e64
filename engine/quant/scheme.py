"""How a checkpoint's matrices are quantised, by its config.json, and under which names it keeps them. Torch-free.

Layouts, each a module of this folder that reads one matrix of it:

- `awq`: AutoAWQ's GEMM layout (arXiv 2306.00978). `qweight`, `qzeros`, `scales`.
- `gptq`: AutoGPTQ's (arXiv 2210.17323). `qweight`, `qzeros`, `scales`, `g_idx`.
- `packed`: compressed-tensors' `pack-quantized`, weights of 4 bits. `weight_packed`, `weight_scale`, ...
- `rows`: compressed-tensors' `int-quantized`, weights of 8 bits with one scale a row. `weight`, `weight_scale`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import ModelError

Layout = Literal["awq", "gptq", "packed", "rows"]

PER_WORD = 8
"""Four-bit values in an int32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """What the quantised matrices of a checkpoint have in common."""

    layout: Layout
    group: int
    """Neighbouring inputs of a row that share a scale; 0: all of the row."""
    zero_offset: int = 0
    """Added to every stored zero point (1 in the first version of GPTQ's layout)."""

    @property
    def main(self) -> str:
        """The part, by its name within the module, that makes it a quantised one."""
        return _PARTS[self.layout][0]

    @property
    def parts(self) -> tuple[str, ...]:
        """All that may be there of a module, by names within it."""
        return _PARTS[self.layout]

    def plain_shape(self, main: tuple[int, ...]) -> tuple[int, ...]:
        """[outputs, inputs] of the matrix whose main part has this shape. Raises `ModelError` if it is no matrix."""
        if len(main) != 2:
            raise ModelError(f"{self.main} of shape {list(main)} is no matrix")
        first, second = main
        return {
            "awq": (second * PER_WORD, first),
            "gptq": (second, first * PER_WORD),
            "packed": (first, second * PER_WORD),
            "rows": (first, second),
        }[self.layout]


_PARTS: Mapping[Layout, tuple[str, ...]] = {
    "awq": ("qweight", "qzeros", "scales"),
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "packed": ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
    "rows": ("weight", "weight_scale", "weight_zero_point", "input_scale", "input_zero_point"),
}


def read_scheme(config: Mapping[str, Any]) -> Scheme | None:
    """How `config` (a config.json) says the weights are quantised; None: they are not.

    Raises `ModelError` for ways that no layout here describes.
    """
    found = config.get("quantization_config") or config.get("compression_config")
    if not found:
        return None
    if not isinstance(found, Mapping):
        raise ModelError("config.json: quantization_config is no object")
    method = found.get("quant_method")
    if method == "awq":
        return _awq(found)
    if method == "gptq":
        return _gptq(found)
    if method == "compressed-tensors":
        return _compressed(found)
    raise ModelError(f"config.json: quantization_config: quant_method {method!r} is not supported")


def quantised(scheme: Scheme | None, names: Collection[str]) -> dict[str, str]:
    """Of a checkpoint's tensors `names`: the plain name of each quantised matrix → its module's prefix."""
    if scheme is None:
        return {}
    end = f".{scheme.main}"
    prefixes = (name.removesuffix(scheme.main) for name in names if name.endswith(end))
    # A plain `weight` is quantised where it has a scale.
    return {f"{at}weight": at for at in prefixes if scheme.layout != "rows" or f"{at}weight_scale" in names}


def plain_shapes(scheme: Scheme | None, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes of a checkpoint's tensors by name, as they would be without quantisation. Raises `ModelError`."""
    found = quantised(scheme, shapes)
    if scheme is None or not found:
        return dict(shapes)
    inner = {at + part for at in found.values() for part in scheme.parts}
    plain = {name: shape for name, shape in shapes.items() if name not in inner}
    return plain | {name: scheme.plain_shape(shapes[at + scheme.main]) for name, at in found.items()}


def _awq(config: Mapping[str, Any]) -> Scheme:
    _require(config, "bits", 4, names=("bits", "w_bit"))
    _require(config, "version", "gemm", names=("version",), fold=True)
    return Scheme(layout="awq", group=_group(config, ("group_size", "q_group_size")))


def _gptq(config: Mapping[str, Any]) -> Scheme:
    _require(config, "bits", 4, names=("bits",))
    form = config.get("checkpoint_format", "gptq")
    if form not in ("gptq", "gptq_v2"):
        raise ModelError(f"config.json: quantization_config: checkpoint_format {form!r} is not supported")
    return Scheme(layout="gptq", group=_group(config, ("group_size",)), zero_offset=1 if form == "gptq" else 0)


def _compressed(config: Mapping[str, Any]) -> Scheme:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise ModelError("config.json: quantization_config has no config_groups")
    found = {_compressed_group(one, config) for one in groups.values()}
    if len(found) != 1:
        raise ModelError("config.json: quantization_config: layers quantised in different ways are not supported")
    if config.get("kv_cache_scheme"):
        raise ModelError("config.json: quantization_config: kv_cache_scheme is not supported")
    sparsity = config.get("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format", "dense") != "dense":
        raise ModelError(f"config.json: quantization_config: sparsity {sparsity['format']!r} is not supported")
    return found.pop()


def _compressed_group(group: Any, config: Mapping[str, Any]) -> Scheme:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise ModelError("config.json: quantization_config: a group without weights")
    form = group.get("format") or config.get("format")
    kind, bits, strategy = weights.get("type", "int"), weights.get("num_bits"), weights.get("strategy")
    if kind == "int" and form == "pack-quantized" and bits == 4 and strategy in ("group", "channel"):
        return Scheme(layout="packed", group=_group(weights, ("group_size",)) if strategy == "group" else 0)
    if (
        kind == "int"
        and form in ("int-quantized", "naive-quantized")
        and bits == 8
        and strategy in ("channel", "tensor")
    ):
        return Scheme(layout="rows", group=0)
    raise ModelError(
        f"config.json: quantization_config: {form} weights of {bits} bits ({kind}) by {strategy} are not supported"
    )


def _require(config: Mapping[str, Any], what: str, wanted: Any, *, names: tuple[str, ...], fold: bool = False) -> None:
    value = next((config[name] for name in names if name in config), wanted)
    if (value.lower() if fold and isinstance(value, str) else value) != wanted:
        raise ModelError(f"config.json: quantization_config: {what} = {value!r} is not supported, only {wanted!r} is")


def _group(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    value = next((config[name] for name in names if config.get(name) is not None), None)
    if value == -1:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json: quantization_config: {names[0]} must be a positive integer, not {value!r}")
    return value
