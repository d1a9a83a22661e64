"""The native runner: how it is sized, and that nothing but a sequence's own tokens decides a bit of its logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.checkpoints import tiny_checkpoint
from support.native import caps, thread_pool
from support.paged import Paged
from tiergate.engine import LaneConfig, ModelError
from tiergate.engine.runners.cpu import NativeRunner, Unsuited
from tiergate.engine.runners.cpu import open as open_runner
from tiergate.kernels import StepRefused

SIZES = {"hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 6, "max_position_embeddings": 1024}
LENGTHS = {"a": 13, "b": 290, "c": 29, "d": 1, "e": 64}


@dataclass(frozen=True)
class Kind:
    """A model and how it is held."""

    arch: str
    precision: str
    kv: str = "bf16"


KINDS = [
    Kind("llama", "bf16"),
    Kind("llama", "int8", "int8"),
    Kind("qwen3", "int4"),
    Kind("mixtral", "bf16", "int8"),
    Kind("qwen3_moe", "int8"),
    Kind("mixtral", "int4"),
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    window = {"use_sliding_window": True, "sliding_window": 70, "max_window_layers": 1}
    return {
        arch: tiny_checkpoint(tmp_path_factory.mktemp(arch), arch, **SIZES, **(window if arch == "qwen3" else {}))
        for arch in sorted({kind.arch for kind in KINDS})
    }


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: f"{kind.arch}-{kind.precision}-kv-{kind.kv}")
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture(scope="module")
def folder(kind: Kind, folders: dict[str, Path]) -> Path:
    return folders[kind.arch]


@pytest.fixture(scope="module")
def tokens() -> dict[str, list[int]]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randint(0, 96, (size,), generator=generator).tolist() for name, size in LENGTHS.items()}


def opened(
    folder: Path, kind: Kind, threads: int = 1, levels: Sequence[int] | None = None, **config: Any
) -> NativeRunner:
    settings: dict[str, Any] = {"blocks": 40, "precision": kind.precision, "kv_precision": kind.kv} | config
    return open_runner(LaneConfig(name="lane", model=str(folder), **settings), thread_pool(threads), levels=levels)


@pytest.fixture(scope="module")
def runner(folder: Path, kind: Kind) -> NativeRunner:
    return opened(folder, kind)


@pytest.fixture(scope="module")
def alone(runner: NativeRunner, tokens: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    """Each sequence by itself, its whole prompt in one step."""
    return {name: Paged(runner, seed=7).step({name: ids})[name] for name, ids in tokens.items()}


def pieces(ids: list[int], sizes: Iterator[int]) -> Iterator[list[int]]:
    at = 0
    while at < len(ids):
        size = next(sizes)
        yield ids[at : at + size]
        at += size


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    return got.numpy().tobytes() == want.numpy().tobytes()


def test_company_changes_no_bit(
    runner: NativeRunner, tokens: dict[str, list[int]], alone: dict[str, torch.Tensor]
) -> None:
    for order in (list(tokens), list(reversed(tokens))):
        got = Paged(runner, seed=1).step({name: tokens[name] for name in order})
        assert [name for name in tokens if not same(got[name], alone[name])] == []


@pytest.mark.parametrize("sizes", [[1], [16], [7, 1, 40], [100], [255, 1, 33]], ids=str)
def test_chunks_change_no_bit(
    runner: NativeRunner, tokens: dict[str, list[int]], alone: dict[str, torch.Tensor], sizes: list[int]
) -> None:
    """Each chunk beside decode rows of others; a prefix hit and a sequence that was preempted are chunks like these."""
    paged, others = Paged(runner, seed=2), iter(tokens["a"] + tokens["c"])
    rows = []
    for at, piece in enumerate(pieces(tokens["b"], (sizes[i % len(sizes)] for i in range(1000)))):
        company = {"x": [token]} if at % 3 == 1 and (token := next(others, None)) is not None else {}
        rows.append(paged.step({**company, "b": piece})["b"])
    assert same(torch.cat(rows), alone["b"])


def test_a_fresh_start_on_the_blocks_of_another_changes_no_bit(
    runner: NativeRunner, tokens: dict[str, list[int]], alone: dict[str, torch.Tensor]
) -> None:
    Paged(runner, seed=3).step({"e": tokens["e"], "b": tokens["b"][:200]})
    assert same(Paged(runner, seed=3).step({"c": tokens["c"]})["c"], alone["c"])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_number_stays_with_its_sequence(
    folder: Path, kind: Kind, tokens: dict[str, list[int]], alone: dict[str, torch.Tensor], bad: float
) -> None:
    """From the poisoned token on a sequence's logits are NaN; its neighbours, and who gets its blocks, see none."""
    poisoned = opened(folder, kind)
    with torch.inference_mode():
        poisoned._decoder._kept[0].embedding[95] = bad
    clean = {name: ids for name, ids in tokens.items() if 95 not in ids}
    assert clean
    paged = Paged(poisoned, seed=1)
    assert paged.step({"x": [3, 4]})["x"].isfinite().all()
    got = paged.step({**clean, "x": [95, 4, 5]})
    assert [name for name in clean if not same(got[name], alone[name])] == []
    assert got["x"].isnan().all()
    assert paged.step({"x": [6]})["x"].isnan().all()
    for name, ids in clean.items():
        assert same(Paged(poisoned, seed=1).step({name: ids})[name], alone[name])


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(
    folder: Path, kind: Kind, tokens: dict[str, list[int]], alone: dict[str, torch.Tensor], threads: int
) -> None:
    paged = Paged(opened(folder, kind, threads), seed=4)
    got = paged.step(tokens)
    assert [name for name in tokens if not same(got[name], alone[name])] == []
    single = Paged(opened(folder, kind, threads), seed=5)
    rows = [single.step({"c": [token]})["c"] for token in tokens["c"]]
    assert same(torch.cat(rows), alone["c"])


@pytest.mark.parametrize("level", ["avx2", "avx512", pytest.param("amx", marks=pytest.mark.amx)])
def test_levels_change_no_bit(
    folder: Path, kind: Kind, tokens: dict[str, list[int]], alone: dict[str, torch.Tensor], level: str
) -> None:
    limited = opened(folder, kind, levels=caps(level))
    assert limited.facts.kernels["linear"] == level
    got = Paged(limited, seed=6).step(tokens)
    assert [name for name in tokens if not same(got[name], alone[name])] == []


def test_the_scalar_level_is_near(
    folder: Path, kind: Kind, tokens: dict[str, list[int]], alone: dict[str, torch.Tensor]
) -> None:
    got = Paged(opened(folder, kind, levels=caps("scalar"))).step({"a": tokens["a"]})["a"]
    assert torch.nn.functional.cosine_similarity(got.flatten(), alone["a"].flatten(), dim=0) > 0.995


def test_last_rows_alone(runner: NativeRunner, tokens: dict[str, list[int]], alone: dict[str, torch.Tensor]) -> None:
    got = Paged(runner, seed=8).step(tokens, last_only=True)
    assert [name for name in tokens if not same(got[name], alone[name][-1:])] == []


def test_a_step_may_want_no_logits(
    runner: NativeRunner, tokens: dict[str, list[int]], alone: dict[str, torch.Tensor]
) -> None:
    paged = Paged(runner, seed=9)
    assert runner.forward(paged.batch({"c": tokens["c"][:20]}, wanted=False)).shape == (0, 96)
    assert same(paged.step({"c": tokens["c"][20:]})["c"], alone["c"][20:])


def test_integer_precisions_come_near_bf16(
    folder: Path, kind: Kind, runner: NativeRunner, tokens: dict[str, list[int]], alone: dict[str, torch.Tensor]
) -> None:
    full = Paged(opened(folder, Kind(kind.arch, "bf16"))).step({"e": tokens["e"]})["e"]
    cosine = torch.nn.functional.cosine_similarity(full, alone["e"], dim=1).median()
    assert cosine > {"bf16": 0.9995, "int8": 0.997, "int4": 0.9}[kind.precision]


def test_more_rows_than_the_buffer_holds(folders: dict[str, Path], tokens: dict[str, list[int]]) -> None:
    few, many = (opened(folders["llama"], KINDS[0], max_sequences=rows) for rows in (2, 64))
    want = Paged(many).step({"c": tokens["c"]})["c"]
    assert same(Paged(few).step({"c": tokens["c"]})["c"], want)


@pytest.mark.parametrize("arch", ["qwen3_moe", "mixtral"])
@pytest.mark.parametrize("repeat", [1, 12], ids=["few", "many"])
def test_experts_are_counted_for_each_sequence(folders: dict[str, Path], arch: str, repeat: int) -> None:
    runner = opened(folders[arch], Kind(arch, "bf16"))
    top = runner.facts.experts_per_token
    prompts = {"a": [4, 8, 15, 16, 23, 42] * repeat, "b": [7, 7, 7], "c": [1, 2, 3, 4] * repeat}
    counts = {"a": 1, "b": top, "c": 1}
    mixed = Paged(runner, seed=1).step(prompts, experts=counts)
    free = Paged(runner, seed=2).step(prompts)
    for name, ids in prompts.items():
        assert same(mixed[name], Paged(runner, seed=3).step({name: ids}, experts=counts)[name])
    assert (mixed["a"] - free["a"]).abs().max() > 0.01
    assert same(mixed["b"], free["b"])
    full = Paged(runner, seed=2).step(prompts, experts=dict.fromkeys(prompts, top))
    assert all(same(full[name], free[name]) for name in prompts)


def test_facts(folders: dict[str, Path]) -> None:
    facts = opened(folders["llama"], KINDS[0], blocks=70).facts
    assert (facts.vocab, facts.context, facts.eos) == (96, 1024, (2,))
    assert (facts.precision, facts.threads) == ("bf16", 1)
    assert facts.kernels.keys() == {"linear", "attention", "rows", "sample", "moe"}
    # 2 layers, 2 key heads of 16 dimensions padded to 32, keys and values in bf16.
    assert facts.kv_bytes_per_token == 2 * 2 * 2 * 32 * 2
    assert opened(folders["llama"], KINDS[0], blocks=0, kv_bytes=100_000).blocks == 100_000 // (512 * 16)
    eighths = opened(folders["llama"], KINDS[1], precision="auto", blocks=0, kv_bytes=100_000)
    assert eighths.facts.precision == "bf16"
    assert eighths.blocks > 100_000 // (512 * 16)
    assert opened(folders["mixtral"], Kind("mixtral", "int4")).facts.experts_per_token == 2


def test_what_it_cannot_serve_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(Unsuited, match="fp32"):
        opened(folders["llama"], KINDS[0], precision="fp32")
    with pytest.raises(Unsuited, match="multiple of 16"):
        opened(folders["llama"], KINDS[0], block_size=8)
    with pytest.raises(Unsuited, match="not 258"):
        opened(tiny_checkpoint(tmp_path, head_dim=258), KINDS[0])
    with pytest.raises(ModelError, match="1025") as found:
        opened(folders["llama"], KINDS[0], blocks=100, context=1025)
    assert not isinstance(found.value, Unsuited)


def test_a_batch_too_large_is_refused(folders: dict[str, Path], tokens: dict[str, list[int]]) -> None:
    runner = opened(folders["llama"], KINDS[0], max_batch_tokens=28)
    with pytest.raises(StepRefused, match="bad shape"):
        Paged(runner).step({"c": tokens["c"]})
    assert Paged(runner).step({"c": tokens["c"][:28]})["c"].isfinite().all()


def test_a_batch_of_nothing(folders: dict[str, Path]) -> None:
    assert opened(folders["llama"], KINDS[0]).forward(Paged(opened(folders["llama"], KINDS[0])).batch({})).shape == (
        0,
        96,
    )
