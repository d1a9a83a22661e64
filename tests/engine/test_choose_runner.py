"""Which runner a lane gets, and what is said about it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.checkpoints import tiny_checkpoint
from support.native import thread_pool
from tiergate.engine import LaneConfig, ModelError
from tiergate.engine.runners import choose
from tiergate.engine.runners.choose import RunnerChooser
from tiergate.engine.runners.cpu import NativeRunner
from tiergate.engine.runners.torch import TorchRunner
from tiergate.kernels import Unavailable


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_checkpoint(tmp_path_factory.mktemp("llama"))


def lane(folder: Path, **config: Any) -> LaneConfig:
    return LaneConfig(name="swift", model=str(folder), blocks=4, **config)


@pytest.mark.parametrize("precision", ["auto", "bf16", "int8", "int4"])
def test_a_cpu_lane_runs_on_the_native_core(folder: Path, precision: Any, caplog: pytest.LogCaptureFixture) -> None:
    thread_pool(1)  # skips where there is none
    with caplog.at_level(logging.INFO):
        runner = RunnerChooser(1)(lane(folder, precision=precision), "cpu")
    assert isinstance(runner, NativeRunner)
    assert runner.facts.precision == ("bf16" if precision == "auto" else precision)
    assert f"lane swift: {runner.facts.precision} on 1 threads, linear " in caplog.text


@pytest.mark.parametrize("config", [{"precision": "fp32"}, {"block_size": 4}], ids=str)
def test_what_the_core_lacks_runs_on_pytorch(
    folder: Path, config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        runner = RunnerChooser(1)(lane(folder, **config), "cpu")
    assert isinstance(runner, TorchRunner)
    assert runner.facts.precision == config.get("precision", "bf16")
    assert not runner.facts.kernels
    assert "PyTorch, not on the native core: " in caplog.text
    assert [record.levelname for record in caplog.records] == ["INFO" if "precision" in config else "WARNING"]


def test_without_a_compiler_pytorch_serves_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_pool(threads: int) -> None:
        raise Unavailable("there is no C++ compiler")

    monkeypatch.setattr(choose, "ThreadPool", no_pool)
    runner = RunnerChooser(1)(lane(folder, precision="int8"), "cpu")
    assert isinstance(runner, TorchRunner)
    assert runner.facts.precision == "bf16"
    assert "there is no C++ compiler" in caplog.text


def test_lanes_share_their_threads(folder: Path) -> None:
    thread_pool(1)
    chooser = RunnerChooser(2)
    first = chooser(lane(folder), "cpu")
    threads = len(list(Path("/proc/self/task").iterdir()))
    second = chooser(lane(folder), "cpu")
    assert first.facts.threads == second.facts.threads == 2
    assert len(list(Path("/proc/self/task").iterdir())) == threads


def test_a_model_that_nobody_can_serve_is_an_error(folder: Path, tmp_path: Path) -> None:
    thread_pool(1)
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        RunnerChooser(1)(lane(tmp_path), "cpu")
    with pytest.raises(ModelError, match="257"):
        RunnerChooser(1)(lane(folder, context=257), "cpu")
