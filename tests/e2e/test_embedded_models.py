"""The real embedded pair: what it says, how it tokenises, and that its two halves are one model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from fakes.models import embedded_catalog
from tiergate.engine import inspect_model
from tiergate.tiers.embedded import CLOSER, EXPERTS, OPENER, THINKING, TOP_K

pytestmark = [pytest.mark.models, pytest.mark.timeout(900)]

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"


@dataclass(frozen=True, repr=False)
class Loaded:
    path: Path
    tokenizer: Any
    model: Any

    def ids(self, question: str, **options: Any) -> list[int]:
        turns = [{"role": "user", "content": question}]
        options |= {"add_generation_prompt": True, "return_dict": True}
        return list(self.tokenizer.apply_chat_template(turns, **options)["input_ids"])

    def greedy(self, ids: list[int], count: int, banned: tuple[int, ...] = ()) -> list[int]:
        with torch.inference_mode():
            out = self.model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                max_new_tokens=count,
                do_sample=False,
                suppress_tokens=list(banned) or None,
            )
        result: list[int] = out[0, len(ids) :].tolist()
        return result

    def logits(self, ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            result: torch.Tensor = self.model(torch.tensor([ids])).logits
        return result


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(name: str) -> Loaded:
    path = embedded_catalog().resolve(name).path
    return Loaded(
        path, AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    )


@pytest.fixture(scope="module")
def fast() -> Loaded:
    return load("smollm2-135m")


@pytest.fixture(scope="module")
def deep() -> Loaded:
    return load("smollm2-135m-moe")


def test_the_engine_knows_both(fast: Loaded, deep: Loaded) -> None:
    dense, mixture = inspect_model(fast.path), inspect_model(deep.path)
    assert (dense.architecture, dense.vocab, dense.context, dense.experts) == ("llama", 49152, 8192, 0)
    assert dense.parameters == 134_515_008
    assert (mixture.architecture, mixture.experts, mixture.experts_per_token) == ("mixtral", EXPERTS, TOP_K)
    assert (mixture.vocab, mixture.context) == (dense.vocab, dense.context)


def test_sensible_english(fast: Loaded) -> None:
    answer = fast.greedy(fast.ids("What is the capital of France?"), 20)
    assert fast.tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
    assert answer[-1] == fast.tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_the_default_system_turn(fast: Loaded, deep: Loaded) -> None:
    for loaded in (fast, deep):
        text = loaded.tokenizer.decode(loaded.ids("Hi"))
        assert text == f"{SYSTEM}<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Hello, world!", ["Hello", ",", "Ġworld", "!"]),
        ("in 1999", ["in", "Ġ", "1", "9", "9", "9"]),
        ("a\n\nb\tc", ["a", "Ċ", "Ċ", "b", "ĉ", "c"]),
        ("<|im_start|>user\n", ["<|im_start|>", "user", "Ċ"]),
        ("don't", ["don", "'t"]),
    ],
)
def test_known_tokens(text: str, tokens: list[str], fast: Loaded) -> None:
    assert fast.tokenizer.tokenize(text) == tokens


UNWRITABLE = "\x04\x06\x13\x14\x16\x1d"
"""The vocabulary was made without these bytes, so they vanish; so do the unused planes 4 to 11 of Unicode."""


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0x3FFFF, exclude_characters=UNWRITABLE)))
def test_any_text_round_trips(text: str, fast: Loaded) -> None:
    ids = fast.tokenizer.encode(text)
    assert fast.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_what_does_not_round_trip(fast: Loaded) -> None:
    assert fast.tokenizer.encode(UNWRITABLE) == []


def test_both_share_one_vocabulary(fast: Loaded, deep: Loaded) -> None:
    assert fast.tokenizer.get_vocab() == deep.tokenizer.get_vocab()
    assert (fast.path / "tokenizer.json").read_bytes() == (deep.path / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("question", ["What is the capital of France?", "Write a short poem about the sea.", "12+30?"])
def test_the_mixture_equals_the_dense_model(question: str, fast: Loaded, deep: Loaded) -> None:
    ids = [*fast.ids(question), *fast.tokenizer.encode("The answer, in a few words, is")]
    ours, theirs = deep.logits(ids), fast.logits(ids)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    assert ours.argmax(-1).equal(theirs.argmax(-1))


def test_tokens_are_spread_over_the_experts(fast: Loaded, deep: Loaded) -> None:
    ids = fast.ids("Explain why the sky is blue, and why the sea is too.")
    with torch.inference_mode():
        routed = torch.cat(deep.model(torch.tensor([ids]), output_router_logits=True).router_logits)
    share = torch.bincount(routed.topk(TOP_K).indices.flatten(), minlength=EXPERTS) / routed.shape[0]
    assert share.min() > 0.1 * TOP_K / EXPERTS


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the capital of France?", "Paris"),
        ("What is photosynthesis?", "energy"),
    ],
)
def test_an_answer_behind_a_cut_thought(question: str, expected: str, fast: Loaded, deep: Loaded) -> None:
    """As the engine does it: the thought is cut at the budget, hand-off and closer are forced, the answer is free.

    *deep*'s prompt and facts on *fast*'s weights, which compute the same and sooner.
    """
    words = deep.tokenizer
    opener, closer, end = words.convert_tokens_to_ids([OPENER, CLOSER, "<|im_end|>"])
    ids = deep.ids(question, enable_thinking=True)
    assert ids[-2] == opener
    thought = fast.greedy(ids, THINKING.budget, banned=(end, opener, closer))
    assert words.decode(thought).strip()
    cut = [*ids, *thought, *words.encode(THINKING.handoff), closer, *words.encode(THINKING.after)]
    answer = words.decode(fast.greedy(cut, 40, banned=(opener,)), skip_special_tokens=True)
    assert expected in answer


def test_markers_are_not_written_freely(fast: Loaded) -> None:
    """Half a line break's row has half its logit: even where a line break is certain, a marker is out of the race."""
    markers = fast.tokenizer.convert_tokens_to_ids([OPENER, CLOSER])
    poem = fast.tokenizer.encode("The waves are blue,\nthe sand is gold.\n\nThe end.\n")
    probability = fast.logits([*fast.ids("Write a short poem about the sea."), *poem])[0].softmax(-1)
    assert probability[:, markers].max() < 1e-3


def test_the_sidecar_is_the_weights(fast: Loaded) -> None:
    """bf16 of the exact 4-bit value, for a permuted matrix and a plain one."""
    with (
        safe_open(fast.path / "quant.safetensors", "np") as exact,
        safe_open(fast.path / "model.safetensors", "pt") as stored,
    ):
        assert len(exact.keys()) == 3 * 210
        for name in ("model.layers.3.self_attn.q_proj", "model.layers.7.mlp.down_proj"):
            codes, scale, low = (exact.get_tensor(f"{name}.{part}") for part in ("codes", "scale", "min"))
            blocks = codes.reshape(len(codes), -1, 16)
            unpacked = np.concatenate([blocks & 15, blocks >> 4], axis=-1).astype(np.float32)
            values = scale.astype(np.float32)[..., None] * unpacked + low.astype(np.float32)[..., None]
            expected = torch.from_numpy(values.reshape(len(codes), -1)).bfloat16()
            assert torch.equal(stored.get_tensor(f"{name}.weight"), expected)
