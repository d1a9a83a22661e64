"""What can be told of a model folder that was made elsewhere, from its own files."""

from __future__ import annotations

import json
from pathlib import Path

from tiergate.engine import ModelError, inspect_model

from .errors import ModelMissing
from .folder import ModelFolder, Thinking, read_json

_OPTIONAL = (
    "chat_template.jinja", "generation_config.json", "model.safetensors.index.json", "tokenizer_config.json",
)  # fmt: skip

THINK = Thinking(
    enabled=True,
    opener="<think>",
    closer="</think>",
    # The sentence that Qwen3's authors cut thoughts with (arXiv 2505.09388, section 4.4).
    handoff=(
        "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly "
        "now.\n"
    ),
    after="\n\n",
    budget=1024,
)
"""For models that think between `<think>` and `</think>`, as most do that think."""


def describe(path: Path, name: str) -> tuple[ModelFolder, list[str]]:
    """The facts of the model in `path`, and the names of the files that make it up.

    Raises `ModelMissing` when a part is absent or damaged, or the engine does not know the architecture.
    """
    try:
        summary = inspect_model(path)
    except ModelError as error:
        raise ModelMissing(str(error)) from error
    vocabulary = _special_tokens(path)
    template = _template(path)
    if not template:
        raise ModelMissing(f"{path} has no chat template, neither chat_template.jinja nor in tokenizer_config.json")
    thinks = THINK.opener in template and {THINK.opener, THINK.closer} <= vocabulary
    model = ModelFolder(
        name=name,
        path=path,
        display_name=name,
        source=f"{path}",
        thinking=THINK if thinks else Thinking(),
    )
    names = [*summary.files, "config.json", "tokenizer.json"]
    return model, names + [name for name in _OPTIONAL if (path / name).is_file()]


def _special_tokens(path: Path) -> set[str]:
    raw = read_json(path / "tokenizer.json")
    try:
        return {token["content"] for token in raw["added_tokens"]}
    except (KeyError, TypeError) as error:
        raise ModelMissing(f"{path / 'tokenizer.json'} is damaged") from error


def _template(path: Path) -> str:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    config = path / "tokenizer_config.json"
    found = read_json(config).get("chat_template") if config.is_file() else None
    return found if isinstance(found, str) else json.dumps(found) if found else ""
