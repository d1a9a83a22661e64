"""Who takes part: each engine at each precision it has a file for, with the settings its own documents recommend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .place import OWN_PYTHON, Place

Bits = Literal[16, 8, 4]


@dataclass(frozen=True, slots=True)
class Contender:
    """One process to be started each round."""

    label: str
    engine: str
    """The peer it belongs to; `tiergate` is ours."""
    bits: Bits
    """Of its weights."""
    python: Path
    driver: str
    """Module that has `open_driver`."""
    options: Mapping[str, Any]
    weights: Path | int
    """What every step must read: the file, or bytes."""
    environment: Mapping[str, str] = field(default_factory=dict)
    mixes: bool = True
    """Whether it takes up requests while others are being answered."""

    @property
    def is_ours(self) -> bool:
        return self.engine == "tiergate"

    @property
    def weight_bytes(self) -> int:
        return self.weights if isinstance(self.weights, int) else self.weights.stat().st_size


DRIVERS = "bench.peers.drivers"
KV_CELLS = 49_152
"""llama.cpp's whole cache in tokens, 1.1 GB in fp16: 64 prompts of 592 tokens and their answers fit without sharing."""
VLLM_KV_GB = 2
LAYER_WEIGHTS, HEAD_WEIGHTS = 106_168_320, 28_311_552
"""Of the model; int4 has a scale of 16 bits a group of 32, and its head is int8."""


def contenders(place: Place, model: Path, threads: int) -> Iterator[Contender]:
    """All that could run; whether their peers are installed is another question. `model` is our own folder."""
    yield from _tiergate(model, threads)
    yield from _transformers(place, threads)
    yield from _llamacpp(place, threads)
    yield from _openvino(place, threads)
    yield from _vllm(place, threads)


def _tiergate(model: Path, threads: int) -> Iterator[Contender]:
    precisions: tuple[tuple[str, Bits, int], ...] = (
        ("bf16", 16, 2 * (LAYER_WEIGHTS + HEAD_WEIGHTS)),
        ("int8", 8, LAYER_WEIGHTS + HEAD_WEIGHTS),
        ("int4", 4, LAYER_WEIGHTS * 9 // 16 + HEAD_WEIGHTS),
    )
    for precision, bits, size in precisions:
        options = {"model": str(model), "threads": threads, "precision": precision}
        yield Contender(f"tiergate {precision}", "tiergate", bits, OWN_PYTHON, f"{DRIVERS}.tiergate", options, size)


def _transformers(place: Place, threads: int) -> Iterator[Contender]:
    options = {"model": str(place.plain), "threads": threads}
    weights = place.plain / "model.safetensors"
    environment = {"HF_HUB_OFFLINE": "1"}
    for how in ("static", "continuous"):
        yield Contender(
            f"transformers {how} bf16",
            "transformers",
            16,
            OWN_PYTHON,
            f"{DRIVERS}.transformers_{how}",
            options,
            weights,
            environment,
            mixes=how == "continuous",
        )


def _llamacpp(place: Place, threads: int) -> Iterator[Contender]:
    files: tuple[tuple[str, Bits], ...] = (("bf16", 16), ("q8_0", 8), ("q4_1", 4))
    for name, bits in files:
        model = place.models / f"{name}.gguf"
        options = {
            "binary": str(place.llama_bin / "llama-server"),
            "model": str(model),
            "threads": threads,
            "cells": KV_CELLS,
            "flags": ["--kv-unified", "--flash-attn", "on"],
        }
        yield Contender(f"llama.cpp {name}", "llamacpp", bits, OWN_PYTHON, f"{DRIVERS}.llama_server", options, model)


def _openvino(place: Place, threads: int) -> Iterator[Contender]:
    formats: tuple[tuple[str, Bits], ...] = (("fp16", 16), ("int8", 8), ("int4", 4))
    for name, bits in formats:
        folder = place.models / f"openvino-{name}"
        options = {"model": str(folder), "threads": threads, "properties": {}}
        yield Contender(
            f"openvino {name}",
            "openvino",
            bits,
            place.python("openvino"),
            f"{DRIVERS}.openvino",
            options,
            folder / "openvino_model.bin",
        )


def _vllm(place: Place, threads: int) -> Iterator[Contender]:
    environment = {
        "LD_PRELOAD": str(place.root / "vllm" / "lib" / "libiomp5.so"),
        "VLLM_CPU_KVCACHE_SPACE": str(VLLM_KV_GB),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    models: tuple[tuple[str, Bits, Path], ...] = (("bf16", 16, place.plain), ("w8a8", 8, place.models / "w8a8"))
    for name, bits, folder in models:
        yield Contender(
            f"vllm {name}",
            "vllm",
            bits,
            place.python("vllm"),
            f"{DRIVERS}.vllm",
            {"model": str(folder), "threads": threads},
            folder / "model.safetensors",
            environment,
        )
