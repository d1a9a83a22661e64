"""Folders are judged by their headers alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from fakes.checkpoints import tiny_checkpoint, tiny_model
from tiergate.engine import ModelError, inspect_model


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "qwen3_moe", "mixtral"])
def test_every_architecture(arch: str, tmp_path: Path) -> None:
    summary = inspect_model(tiny_checkpoint(tmp_path, arch))
    model = tiny_model(arch)
    assert summary.architecture == arch
    assert summary.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert summary.weight_bytes == 4 * summary.parameters
    assert (summary.dtype, summary.vocab, summary.context) == ("F32", 96, 256)
    assert summary.files == ("model.safetensors",)
    experts = getattr(model.config, "num_experts", 0)
    assert (summary.experts, summary.experts_per_token) == (experts, model.config.num_experts_per_tok if experts else 0)


def test_shards(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path, max_shard_size="20KB")
    summary = inspect_model(tmp_path)
    assert len(summary.files) > 1
    assert summary.parameters == sum(parameter.numel() for parameter in tiny_model().parameters())
    (tmp_path / summary.files[1]).unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        inspect_model(tmp_path)


def edit(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "'GemmaForCausalLM' is not supported"),
        ({"architectures": ["SpecForCausalLM"]}, "not supported"),
        ({"architectures": []}, "architectures"),
        ({"vocab_size": 97}, r"model\.embed_tokens\.weight has shape \(96, 32\), not \(97, 32\)"),
        ({"num_hidden_layers": 3}, r"model\.layers\.2\..* is missing"),
        ({"num_hidden_layers": 10**12}, "there are only"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_what_the_engine_could_not_load(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    edit(tiny_checkpoint(tmp_path), **changes)
    with pytest.raises(ModelError, match=message):
        inspect_model(tmp_path)


def test_missing_parts(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a folder"):
        inspect_model(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        inspect_model(tmp_path)
    for content in ("{", "[]"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ModelError, match=r"config\.json is not"):
            inspect_model(tmp_path)
    folder = tiny_checkpoint(tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight is missing"):
        inspect_model(folder)


@pytest.mark.parametrize(
    "index", ["[]", '{"weight_map": {}}', '{"weight_map": {"a": "../x"}}', '{"weight_map": {"a": 1}}']
)
def test_damaged_index(index: str, tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match="index"):
        inspect_model(tmp_path)


def test_no_tensor_library_is_loaded(tmp_path: Path) -> None:
    """The gateway looks at folders too, and it must stay small."""
    folder = tiny_checkpoint(tmp_path / "m")
    code = (
        f"import sys; sys.path[:0] = {sys.path[:2]!r}\n"
        "from pathlib import Path\nfrom tiergate.engine import inspect_model\n"
        f"inspect_model(Path({str(folder)!r}))\n"
        "assert not {'torch', 'numpy', 'gguf', 'tokenizers'} & set(sys.modules), set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(folder)
