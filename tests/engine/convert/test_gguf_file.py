"""Damaged GGUF files end in a `ModelError`, never in another exception and never in an endless read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.checkpoints import tiny_model
from fakes.gguf import write_gguf
from tiergate.engine import ModelError, convert_gguf
from tiergate.engine.convert.gguf_file import open_gguf, to_bf16


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    model = tiny_model("llama", vocab_size=400, hidden_size=16, intermediate_size=16, num_hidden_layers=1)
    return write_gguf(path, model).read_bytes()


def header_size(data: bytes) -> int:
    return data.index(b"output_norm.weight") + 64


def test_metadata_and_shapes(good: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(good)
    file = open_gguf(tmp_path / "m.gguf")
    assert file.architecture == "llama"
    assert file.metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-6
    assert file.metadata["llama.embedding_length"] == 16
    assert file.tensors["token_embd.weight"].shape == (400, 16)
    assert file.tensors["blk.0.attn_k.weight"].shape == (8, 16)


def test_absent_foreign_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        open_gguf(tmp_path / "absent.gguf")
    with pytest.raises(ModelError):
        open_gguf(tmp_path)
    for content in (b"", b"GG", b"PK\x03\x04" * 100, b"GGUF" + b"\xff" * 100):
        (tmp_path / "m.gguf").write_bytes(content)
        with pytest.raises(ModelError, match="not a GGUF file"):
            open_gguf(tmp_path / "m.gguf")


def test_every_truncation_is_noticed(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for size in [*range(0, header_size(good), 997), len(good) // 2, len(good) - 1]:
        path.write_bytes(good[:size])
        with pytest.raises(ModelError):
            open_gguf(path)


def test_a_huge_array_length_is_noticed_at_once(good: bytes, tmp_path: Path) -> None:
    """The array of token types claims 2**62 entries."""
    at = good.index(b"tokenizer.ggml.token_type") + len(b"tokenizer.ggml.token_type") + 8
    (tmp_path / "m.gguf").write_bytes(good[:at] + (2**62).to_bytes(8, "little") + good[at + 8 :])
    with pytest.raises(ModelError):
        open_gguf(tmp_path / "m.gguf")


def test_a_part_of_a_split_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama", vocab_size=400), extra={"split.count": 3})
    with pytest.raises(ModelError, match="one of 3 parts"):
        open_gguf(path)


def test_the_other_byte_order(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("token_embd.weight", np.ones((4, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="byte order"):
        open_gguf(tmp_path / "m.gguf")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_damaged_bytes_convert_or_raise_model_error(good: bytes, tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(good)
    numbers = good.index(b"tokenizer.ggml.model")
    place = st.integers(0, numbers) | st.integers(good.index(b"token_embd.weight"), header_size(good))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(place)] = data.draw(st.integers(0, 255))
    (tmp_path / "m.gguf").write_bytes(damaged)
    with suppress(ModelError):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40))
def test_bf16_is_rounded_as_torch_rounds(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    expected = torch.from_numpy(array).bfloat16().view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(to_bf16(array), expected)
