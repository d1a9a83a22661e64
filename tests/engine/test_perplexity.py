"""The loss of a text is that of one long forward pass, and precisions are chosen by it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fakes.checkpoints import tiny_checkpoint, tiny_model
from fakes.model import FakeRunner, naive_logits
from support.native import thread_pool
from support.quantised import write_awq, write_gptq, write_rows
from tiergate.engine import LaneConfig, PrecisionCheck, check_model, choose_precision
from tiergate.engine.perplexity import TextLoss, text_loss
from tiergate.engine.runners.torch import open as open_runner


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_it_is_the_loss_of_transformers(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path)
    lane = LaneConfig(name="a", model=str(folder), precision="fp32", blocks=20)
    ids = torch.randint(0, 96, (300,), generator=torch.Generator().manual_seed(1))
    got = text_loss(open_runner(lane, "cpu"), ids.tolist(), 200)
    nats = 0.0
    for part in ids.split(200):
        with torch.no_grad():
            logits = tiny_model()(part[None]).logits[0, :-1]
        nats += float(torch.nn.functional.cross_entropy(logits, part[1:], reduction="sum"))
    assert got.tokens == 298
    assert got.nats == pytest.approx(nats, rel=1e-4)


@pytest.mark.parametrize("length", [0, 1, 2, 9, 16, 17, 18])
def test_windows_of_any_rest(length: int) -> None:
    ids = [(7 * n) % 64 for n in range(length)]
    got = text_loss(FakeRunner(blocks=8, block_size=4), ids, 8)
    nats, tokens = 0.0, 0
    for start in range(0, length, 8):
        part = ids[start : start + 8]
        for at in range(1, len(part)):
            logits = torch.from_numpy(naive_logits(part[:at], 64))
            nats -= float(torch.log_softmax(logits, 0)[part[at]])
            tokens += 1
    assert got.tokens == tokens
    assert got.nats == pytest.approx(nats, rel=1e-5)


def test_a_window_must_fit_the_cache() -> None:
    for window in (1, 33):
        with pytest.raises(ValueError, match="windows of"):
            text_loss(FakeRunner(blocks=8, block_size=4), [1, 2, 3], window)


def test_what_cannot_be_predicted_is_infinite() -> None:
    assert TextLoss(2, math.inf).perplexity == math.inf
    assert TextLoss(2, math.nan).perplexity == math.inf
    assert TextLoss(0, 0.0).perplexity == 1.0
    assert TextLoss(2, 2 * math.log(5)).perplexity == pytest.approx(5)


BF16 = PrecisionCheck(precision="bf16", perplexity=10.0, weight_error=0, exact_share=1, bytes=2, step_seconds=3.0)


@given(st.floats(5, 20), st.floats(5, 20) | st.just(math.inf), st.floats(0.1, 9), st.floats(0.1, 9))
def test_auto_is_the_fastest_that_is_as_good(eight: float, four: float, fast: float, faster: float) -> None:
    int8 = replace(BF16, precision="int8", perplexity=eight, step_seconds=fast)
    int4 = replace(BF16, precision="int4", perplexity=four, step_seconds=faster)
    chosen = choose_precision((BF16, int8, int4))
    best = {one.precision: one for one in (BF16, int8, int4)}[chosen]
    assert best.perplexity <= BF16.perplexity * 1.01
    for other in (BF16, int8, int4):
        assert other.step_seconds >= best.step_seconds or other.perplexity > BF16.perplexity * 1.01


@pytest.mark.parametrize(("layout", "exact"), [("plain", 0), ("gptq", 1), ("awq", 0), ("rows", 1)])
def test_a_check_says_what_is_exact(layout: str, exact: int, tmp_path: Path) -> None:
    thread_pool(1)  # skips where there is no native core
    folder = tiny_checkpoint(tmp_path, hidden_size=64, intermediate_size=128)
    {"plain": lambda _: None, "gptq": write_gptq, "awq": write_awq, "rows": write_rows}[layout](folder)
    ids = torch.randint(0, 96, (200,), generator=torch.Generator().manual_seed(1)).tolist()
    found = {one.precision: one for one in check_model(folder, ids, threads=1)}
    assert list(found) == ["bf16", "int8", "int4"]
    assert found["bf16"].weight_error < 3e-3
    assert found["bf16"].bytes > found["int8"].bytes
    assert all(one.step_seconds > 0 and one.perplexity > 1 for one in found.values())
    kept = found["int8" if layout == "rows" else "int4"]
    head = 96 * 64
    layers = 2 * (64 * 128 + 64 * 64 + 3 * 64 * 128)
    assert kept.exact_share == pytest.approx(layers / (layers + head) if exact else 0)
    if layout == "awq":
        assert kept.weight_error < 0.02  # minima rounded to float16, and the head
    if layout == "plain":
        assert 0.02 < kept.weight_error < 0.2
        assert 0 < found["int8"].weight_error < 0.02
