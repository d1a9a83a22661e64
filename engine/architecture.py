"""Finds the module of `engine/models` for a model's config, by name. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import ModelError


def architecture(config: Mapping[str, Any]) -> ModuleType:
    """The module for a config's first architecture: `Qwen3MoeForCausalLM` is `qwen3_moe`. Raises `ModelError`."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelError("config.json: architectures names no model class")
    stem = snake_case(names[0].removesuffix("ForCausalLM"))
    known = {path.stem for path in (Path(__file__).parent / "models").glob("*.py")}
    if names[0].endswith("ForCausalLM") and stem in known:
        module = import_module(f".models.{stem}", __package__)
        if hasattr(module, "spec") and hasattr(module, "weights"):
            return module
    raise ModelError(f"config.json: architecture {names[0]!r} is not supported")


def snake_case(name: str) -> str:
    """`Qwen3Moe` → `qwen3_moe`."""
    return "".join(f"_{c.lower()}" if c.isupper() and at else c.lower() for at, c in enumerate(name))
