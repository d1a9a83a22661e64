"""GGUF files of every architecture and type become folders that transformers loads as the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from safetensors import safe_open
from safetensors.torch import load_file

from fakes.checkpoints import tiny_model
from fakes.gguf import CONTROL, rounded, tokenizer, write_gguf
from tiergate.engine import ModelError, Respell, convert_gguf, inspect_model

VOCAB = 416
IDS = torch.tensor([[1, 7, 300, 12, 45, 399, 8, 8, 21, 60]])

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "llama-untied": ("llama", {"tie_word_embeddings": False, "rms_norm_eps": 1e-5}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", {"head_dim": 16}),
    "mixtral": ("mixtral", {}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "qwen3-biases": ("qwen3", {"attention_bias": True}),
    "qwen3-moe": ("qwen3_moe", {}),
}


def model(name: str, **config: Any) -> transformers.PreTrainedModel:
    arch, own = MODELS[name]
    return tiny_model(arch, **{"vocab_size": VOCAB, **own, **config})


def logits(loaded: transformers.PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = loaded(IDS).logits
    return result


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", MODELS)
def test_the_folder_holds_the_same_model(name: str, tmp_path: Path) -> None:
    source = rounded(model(name))
    convert_gguf(write_gguf(tmp_path / "m.gguf", source), tmp_path / "out")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert type(loaded) is type(source)
    torch.testing.assert_close(logits(loaded), logits(source), rtol=0, atol=0)
    assert inspect_model(tmp_path / "out").parameters == sum(p.numel() for p in source.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_the_config_is_that_of_the_source(name: str, tmp_path: Path) -> None:
    source = model(name).config
    convert_gguf(write_gguf(tmp_path / "m.gguf", model(name)), tmp_path / "out")
    loaded = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    ours, theirs = loaded.to_dict(), source.to_dict()
    for key in theirs.keys() - {"_name_or_path", "dtype", "architectures", "pad_token_id", "transformers_version"}:
        if key == "head_dim" and theirs[key] is None:
            continue
        assert ours[key] == theirs[key], key


@pytest.mark.parametrize(
    "type", [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1], ids=lambda t: t.name
)
@pytest.mark.parametrize("name", ["llama", "qwen3-moe"])
def test_quantised_weights_are_the_dequantised_values(name: str, type: Type, tmp_path: Path) -> None:
    """Each value is what gguf dequantises, rounded to bf16, in Hugging Face's order of rows."""
    wide = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "head_dim": 16}
    source = model(name, **{k: v for k, v in wide.items() if k in model(name).config.to_dict()})
    convert_gguf(write_gguf(tmp_path / "m.gguf", source, type=type), tmp_path / "out")
    written = load_file(tmp_path / "out" / "model.safetensors")
    for key, value in unstacked(source).items():
        stored = Type.Q8_0 if key.endswith("embed_tokens.weight") and type not in (Type.F16, Type.BF16) else type
        if value.ndim == 1 or key.endswith("mlp.gate.weight"):
            stored = Type.F32
        expected = torch.from_numpy(gguf.dequantize(gguf.quantize(value.numpy(), stored), stored)).bfloat16()
        assert torch.equal(written.pop(key), expected), key
    assert not written


def unstacked(source: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights under the names they have on disk: experts one by one, nothing twice."""
    found = {}
    for name, value in source.state_dict().items():
        value = value.detach().contiguous()
        stem, _, last = name.partition(".experts.")
        if last == "gate_up_proj":
            for e, matrix in enumerate(value):
                gate, up = matrix.chunk(2)
                found[f"{stem}.experts.{e}.gate_proj.weight"] = gate.contiguous()
                found[f"{stem}.experts.{e}.up_proj.weight"] = up.contiguous()
        elif last == "down_proj":
            found |= {f"{stem}.experts.{e}.down_proj.weight": matrix for e, matrix in enumerate(value)}
        elif not (name == "lm_head.weight" and source.config.tie_word_embeddings):
            found[name] = value
    return found


@pytest.mark.parametrize("type", [Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.Q3_K, Type.Q2_K], ids=lambda t: t.name)
def test_k_quants_are_read(type: Type, tmp_path: Path) -> None:
    """gguf cannot write k-quants, so the blocks of one matrix are random bytes with small scales."""
    source = model("llama", intermediate_size=256)
    path = write_gguf(tmp_path / "m.gguf", source)
    blocks = random_blocks(type, rows=source.config.hidden_size)
    down = [f"blk.{n}.ffn_down.weight" for n in range(source.config.num_hidden_layers)]
    rewrite(path, tmp_path / "k.gguf", dict.fromkeys(down, (blocks, type)))
    convert_gguf(tmp_path / "k.gguf", tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        written = file.get_tensor("model.layers.1.mlp.down_proj.weight")
    assert torch.equal(written, torch.from_numpy(gguf.dequantize(blocks, type)).bfloat16())
    assert written.abs().sum() > 0


def random_blocks(type: Type, rows: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One block of 256 weights a row; bytes that happen to make a float16 scale huge or NaN are cleared."""
    size = gguf.GGML_QUANT_SIZES[type][1]
    blocks = np.random.default_rng(0).integers(0, 256, (rows, size), dtype=np.uint8)
    scale = np.frombuffer(np.float16(0.01).tobytes() * 2, np.uint8)
    for start in {Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q2_K: [80, 82]}.get(type, [size - 2]):
        blocks[:, start : start + 2] = scale[:2]
    return blocks


def rewrite(source: Path, target: Path, replaced: dict[str, tuple[np.ndarray[Any, Any], Type]], drop: str = "") -> None:
    """Copy a GGUF, some tensors exchanged or dropped."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub)
    for tensor in reader.tensors:
        data, type = replaced.get(tensor.name, (tensor.data, tensor.tensor_type))
        if tensor.name != drop:
            writer.add_tensor(tensor.name, data, raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("type", [Type.Q4_0, Type.Q4_1], ids=lambda t: t.name)
def test_the_sidecar_holds_the_exact_four_bit_values(type: Type, tmp_path: Path) -> None:
    source = model("llama", hidden_size=64, intermediate_size=96, head_dim=16)
    convert_gguf(write_gguf(tmp_path / "m.gguf", source, type=type), tmp_path / "out")
    parts = load_file(tmp_path / "out" / "quant.safetensors")
    names = {name.rsplit(".", 1)[0] for name in parts}
    weights = {k: v for k, v in source.state_dict().items() if v.ndim == 2 and k.startswith("model.layers")}
    assert names == {name.removesuffix(".weight") for name in weights}
    for name, value in weights.items():
        codes, scale, low = (parts[f"{name.removesuffix('.weight')}.{part}"] for part in ("codes", "scale", "min"))
        rows, columns = value.shape
        assert codes.shape == (rows, columns // 2)
        assert scale.shape == low.shape == (rows, columns // 32)
        blocks = codes.view(rows, columns // 32, 16)
        unpacked = torch.cat([blocks & 15, blocks >> 4], dim=-1).float()
        rebuilt = (scale.float()[..., None] * unpacked + low.float()[..., None]).view(rows, columns)
        expected = gguf.dequantize(gguf.quantize(value.numpy(), type), type)
        np.testing.assert_array_equal(rebuilt.numpy(), expected)


def test_no_sidecar_without_four_bit_weights(tmp_path: Path) -> None:
    convert_gguf(write_gguf(tmp_path / "m.gguf", model("llama")), tmp_path / "out")
    assert not (tmp_path / "out" / "quant.safetensors").exists()


@pytest.mark.parametrize("name", ["llama", "llama-untied"])
def test_a_respelled_token_takes_over_a_scaled_row(name: str, tmp_path: Path) -> None:
    source = rounded(model(name))
    change = Respell(token=CONTROL[3], to="<think>", like="Ċ", scale=0.5)
    convert_gguf(write_gguf(tmp_path / "m.gguf", source), tmp_path / "out", respell=[change])
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    new, like = loaded.convert_tokens_to_ids(["<think>", "Ċ"])
    assert new == CONTROL.index(CONTROL[3])
    assert loaded.encode("a<think>b", add_special_tokens=False)[1] == new
    written = load_file(tmp_path / "out" / "model.safetensors")
    heads = ["model.embed_tokens.weight"] + ["lm_head.weight"] * (not source.config.tie_word_embeddings)
    for head in heads:
        expected = source.state_dict()[head].clone()
        expected[new] = expected[like] * 0.5
        assert torch.equal(written[head].float(), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Respell(token="absent", to="<think>", like="Ċ", scale=0.5), "no such control tokens: absent"),
        (Respell(token="Ċ", to="<think>", like="Ċ", scale=0.5), "no such control tokens: Ċ"),
        (Respell(token=CONTROL[3], to=CONTROL[4], like="Ċ", scale=0.5), "twice"),
        (Respell(token=CONTROL[3], to="<think>", like="absent", scale=0.5), "no token 'absent'"),
    ],
)
def test_impossible_respelling_is_refused(change: Respell, message: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", model("llama"))
    with pytest.raises(ModelError, match=message):
        convert_gguf(path, tmp_path / "out", respell=[change])


def test_missing_and_foreign_tensors_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", model("llama"))
    rewrite(path, tmp_path / "less.gguf", {}, drop="blk.1.attn_k.weight")
    with pytest.raises(ModelError, match=r"tensor model.layers.1.self_attn.k_proj.weight is missing"):
        convert_gguf(tmp_path / "less.gguf", tmp_path / "out")
    rewrite(path, tmp_path / "odd.gguf", {})
    renamed = (tmp_path / "odd.gguf").read_bytes().replace(b"blk.1.attn_k.weight", b"blk.1.attn_z.weight")
    (tmp_path / "odd.gguf").write_bytes(renamed)
    with pytest.raises(ModelError, match=r"blk.1.attn_z.weight has no place in a llama model"):
        convert_gguf(tmp_path / "odd.gguf", tmp_path / "out")


def test_an_unreadable_block_type_is_refused(tmp_path: Path) -> None:
    source = model("llama", hidden_size=64, intermediate_size=96, head_dim=16)
    path = write_gguf(tmp_path / "m.gguf", source)
    blocks = np.zeros((64, 96 // 32 * gguf.GGML_QUANT_SIZES[Type.Q8_1][1]), dtype=np.uint8)
    rewrite(path, tmp_path / "q8_1.gguf", {"blk.0.ffn_down.weight": (blocks, Type.Q8_1)})
    with pytest.raises(ModelError, match="stored as Q8_1"):
        convert_gguf(tmp_path / "q8_1.gguf", tmp_path / "out")
    assert not (tmp_path / "out" / "config.json").exists()


def test_close_to_transformers_own_gguf_loading(tmp_path: Path) -> None:
    """transformers computes with the 4-bit values themselves, so the two differ by the rounding to bf16 alone."""
    size = len(tokenizer("smollm").get_vocab())
    source = model("llama", hidden_size=64, intermediate_size=96, head_dim=16, vocab_size=size)
    path = write_gguf(tmp_path / "m.gguf", source, type=Type.Q4_1)
    convert_gguf(path, tmp_path / "out")
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    ids = IDS.clamp(max=size - 1)
    with torch.inference_mode():
        a, b = ours(ids).logits, theirs(ids).logits
    assert torch.nn.functional.cosine_similarity(a, b, dim=-1).min() > 0.9995


def test_a_broken_conversion_leaves_no_config_and_can_be_repeated(tmp_path: Path) -> None:
    class Breaks:
        def begin(self, what: str, total: int | None) -> None:
            self.left = (total or 0) // 2

        def advance(self, amount: int) -> None:
            self.left -= amount
            if self.left < 0:
                raise KeyboardInterrupt

    source = rounded(model("llama"))
    path = write_gguf(tmp_path / "m.gguf", source)
    with pytest.raises(KeyboardInterrupt):
        convert_gguf(path, tmp_path / "out", progress=Breaks())
    assert list((tmp_path / "out").iterdir()) == []
    convert_gguf(path, tmp_path / "out")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(logits(loaded), logits(source), rtol=0, atol=0)


def test_progress_adds_up_to_the_total(tmp_path: Path) -> None:
    class Sums:
        total = done = 0

        def begin(self, what: str, total: int | None) -> None:
            self.total += total or 0

        def advance(self, amount: int) -> None:
            self.done += amount

    progress = Sums()
    convert_gguf(write_gguf(tmp_path / "m.gguf", model("llama")), tmp_path / "out", progress=progress)
    assert progress.total == progress.done > 0


def test_the_chat_template_and_ends_are_taken_over(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", model("llama"), template="hi", extra={"tokenizer.ggml.eot_token_id": 0})
    convert_gguf(path, tmp_path / "out")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "hi"
    generation = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert generation.eos_token_id == [2, 0]
