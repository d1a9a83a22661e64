"""A GGUF file made into a Hugging Face style folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError
from . import quant_sidecar
from .expected import check_tensors, read_spec
from .files import write_json, write_text
from .gguf_config import GgufShape, Json, hf_config
from .gguf_file import GgufFile, GgufTensor, open_gguf, to_bf16
from .gguf_names import VOCABULARY_WEIGHTS, Target, targets, unpermuted_rows
from .gguf_tokenizer import build_tokenizer, spelled_tokens, tokenizer_config
from .progress import Progress
from .respell import Respell
from .safetensors_file import TensorSlot, writing


@dataclass(frozen=True, slots=True)
class _Piece:
    """One tensor to write and where it comes from."""

    target: Target
    source: GgufTensor
    copies: tuple[tuple[int, int, float], ...] = ()
    """(row, from, scale): rows of it that are replaced by scaled copies of others."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape[1:] if self.target.expert is not None else self.source.shape

    def tensor(self) -> GgufTensor:
        """The source cut to the expert and with its rows in Hugging Face's order, still quantised."""
        blocks = self.source.blocks
        if self.target.expert is not None:
            blocks = blocks[self.target.expert]
        if self.target.heads:
            blocks = blocks[unpermuted_rows(len(blocks), self.target.heads)]
        return GgufTensor(self.source.name, self.shape, self.source.type, blocks)

    def bf16(self) -> bytes:
        """What to write, row-major."""
        values = self.tensor().bf16()
        if self.copies:
            values = values.copy()
            for row, like, scale in self.copies:
                scaled = (values[like].astype(np.uint32) << 16).view(np.float32) * np.float32(scale)
                values[row] = to_bf16(scaled)
        return values.tobytes()


def convert(path: Path, folder: Path, respell: Sequence[Respell], progress: Progress) -> None:
    """See `tiergate.engine.convert_gguf`."""
    file = open_gguf(path)
    config = hf_config(file.architecture, file.metadata, _shape(file))
    pieces = _pieces(file, config, respell)
    tokenizer = build_tokenizer(file.metadata, respell)
    if tokenizer.get_vocab_size() > config["vocab_size"]:
        raise ModelError(f"{path.name}: the tokenizer has more tokens than the embedding has rows")

    folder.mkdir(parents=True, exist_ok=True)
    _write_weights(folder / "model.safetensors", pieces, progress)
    _write_sidecar(folder / "quant.safetensors", pieces)
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=False))
    write_json(folder / "tokenizer_config.json", tokenizer_config(file.metadata, respell))
    template = file.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        write_text(folder / "chat_template.jinja", template)
    write_json(folder / "generation_config.json", _generation_config(file.metadata))
    write_json(folder / "config.json", config)


def _shape(file: GgufFile) -> GgufShape:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{file.path.name}: no token_embd.weight")
    factors = file.tensors.get("rope_freqs.weight")
    stacked = file.tensors.get("blk.0.ffn_gate_exps.weight")
    return GgufShape(
        vocab=embedding.shape[0],
        layers=len({name.split(".")[1] for name in file.tensors if name.startswith("blk.")}),
        experts=stacked.shape[0] if stacked else 0,
        tied="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        rope_factors=tuple(factors.blocks.tolist()) if factors else (),
    )


def _pieces(file: GgufFile, config: Json, respell: Sequence[Respell]) -> list[_Piece]:
    """Everything to write, in the file's order. Raises `ModelError` unless it is what the architecture wants."""
    copies = _row_copies(file.metadata, respell)
    pieces = [
        _Piece(target, tensor, copies if target.name in VOCABULARY_WEIGHTS else ())
        for tensor in file.tensors.values()
        for target in targets(tensor.name, config)
    ]
    shapes = {piece.target.name: piece.shape for piece in pieces}
    used = check_tensors(config, read_spec(config, shapes), shapes)
    if unused := shapes.keys() - used:
        raise ModelError(f"{min(unused)} has no place in a {config['model_type']} model")
    return pieces


def _row_copies(metadata: Mapping[str, Any], respell: Sequence[Respell]) -> tuple[tuple[int, int, float], ...]:
    if not respell:
        return ()
    ids = {token: index for index, token in enumerate(spelled_tokens(metadata, respell))}
    if unknown := [change.like for change in respell if change.like not in ids]:
        raise ModelError(f"GGUF: no token {unknown[0]!r} to take an embedding from")
    return tuple((ids[change.to], ids[change.like], change.scale) for change in respell)


def _write_weights(path: Path, pieces: list[_Piece], progress: Progress) -> None:
    layout = {piece.target.name: TensorSlot("BF16", piece.shape) for piece in pieces}
    progress.begin("converting weights", sum(slot.nbytes for slot in layout.values()))
    with writing(path, layout) as writer:
        for piece in pieces:
            data = piece.bf16()
            writer.write(piece.target.name, data)
            progress.advance(len(data))


def _write_sidecar(path: Path, pieces: list[_Piece]) -> None:
    """Write the 4-bit weights as they are; no file when there are none."""
    layout: dict[str, TensorSlot] = {}
    kept = [piece for piece in pieces if quant_sidecar.is_four_bit(piece.source.type, piece.shape)]
    for piece in kept:
        layout.update(quant_sidecar.slots(piece.target.name.removesuffix(".weight"), *piece.shape))
    if not kept:
        path.unlink(missing_ok=True)
        return
    with writing(path, layout) as writer:
        for piece in kept:
            name, parts = piece.target.name.removesuffix(".weight"), quant_sidecar.split(piece.tensor())
            writer.write(f"{name}.codes", parts.codes.tobytes())
            writer.write(f"{name}.scale", parts.scale.tobytes())
            writer.write(f"{name}.min", parts.min.tobytes())


def _generation_config(metadata: Mapping[str, Any]) -> Json:
    """Chat models may end a turn (`eot`) and a text (`eos`) by different tokens; either ends an answer."""
    ids = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    ends = list(dict.fromkeys(index for index in ids if index is not None))
    return {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }
