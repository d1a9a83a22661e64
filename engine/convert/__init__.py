"""Model folders made from other things: a GGUF file, a dense model. Importing this loads neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .progress import Progress, Silent
from .respell import Respell
from .summary import ModelSummary, inspect_model

__all__ = ["ModelSummary", "Progress", "Respell", "Silent", "convert_gguf", "inspect_model", "upcycle"]


def convert_gguf(
    path: Path, folder: Path, *, respell: Sequence[Respell] = (), progress: Progress | None = None
) -> None:
    """Make a Hugging Face style folder of a GGUF file of architecture llama, qwen2, qwen3 or qwen3moe.

    Writes config.json, model.safetensors (bf16), tokenizer.json, tokenizer_config.json, generation_config.json,
    chat_template.jinja (if the file has one) and quant.safetensors (the exact 4-bit values, if it has any: see
    `quant_sidecar.py`). Each file appears whole or not at all; config.json comes last. `respell` gives reserved
    tokens a new spelling and meaning.

    Raises `ModelError` when the file is missing, damaged, or something is not understood.
    """
    from .gguf_folder import convert

    convert(path, folder, respell, progress or Silent())


def upcycle(
    folder: Path, out: Path, *, experts: int, top_k: int, seed: int = 0, progress: Progress | None = None
) -> None:
    """Make the bf16 Llama in `folder` a Mixtral in `out` that computes the same: see `sparse_upcycling.py`.

    Raises `ModelError` when `folder` is damaged or holds anything else.
    """
    from . import sparse_upcycling

    sparse_upcycling.upcycle(folder, out, experts, top_k, seed, progress or Silent())
