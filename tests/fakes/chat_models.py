"""Tiny chat models that are all tokenizer and no weights, for tests of text."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tiergate.tiers.folder import ModelFolder, Thinking

CORPUS = (
    "The quick brown fox jumps over the lazy dog. A gateway speaks to two tiers, the fast one and the deep one.",
    "Question: what is 12 + 30? Answer: it is 42. Let me think about it step by step, then I answer.",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2))  # <b>bold</b> and a < b and c > d",
    "Grüße aus Köln, naïve café, 日本語のテキスト, Привет мир, مرحبا, 😀 👩‍👩‍👧 🇩🇪.",
    "user assistant system tool name arguments content <tool_call> <think>",
)
CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking %}{{ '<think>\\n' }}{% endif %}{% endif %}"
)
"""ChatML with a default system turn, as SmolLM2 has it, and a thinking block on request."""
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_level_tokenizer(*, markers: tuple[str, ...] = ("<think>", "</think>"), size: int = 800) -> Tokenizer:
    """Byte-level BPE like SmolLM2's: special tokens first, digits alone. `markers` become added tokens, not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in markers])
    return tokenizer


def byte_fallback_tokenizer(size: int = 700) -> Tokenizer:
    """Sentencepiece BPE like Llama 2's: spaces are `▁`, one stands before the text, unknown characters become bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False, max_token_length=12)
    tokenizer.train_from_iterator([text.encode("ascii", "ignore").decode() for text in CORPUS], trainer)
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    return Tokenizer.from_str(json.dumps(state))


def metaspace_tokenizer(size: int = 500) -> Tokenizer:
    """Sentencepiece with a metaspace and no bytes, like T5's."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def write_chat_model(
    folder: Path, tokenizer: Tokenizer | None = None, *, template: str = CHATML, config: dict[str, Any] | None = None
) -> Path:
    """A folder with tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    folder.mkdir(parents=True, exist_ok=True)
    (tokenizer or byte_level_tokenizer()).save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", **(config or {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    if template:
        (folder / "chat_template.jinja").write_text(template)
    return folder


THINKING = Thinking(
    enabled=True, opener="<think>", closer="</think>", handoff="\nTime is up.\n", after="\n\n", budget=64
)


@dataclass(frozen=True, slots=True)
class FakeModels:
    """A catalog of one folder under every name."""

    path: Path
    thinking: Thinking = field(default_factory=lambda: THINKING)

    def resolve(self, name: str) -> ModelFolder:
        return ModelFolder(name=name, path=self.path, display_name=name, thinking=self.thinking)
