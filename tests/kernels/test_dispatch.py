"""Implementations are found by file name, and passed over where they cannot run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tiergate.kernels import Choice, backend_report
from tiergate.kernels.cpu_features import cpu_features, parse_cpuinfo

OP = "from tiergate.kernels.dispatch import op\n\n@op\ndef {name}(x):\n    return x + 1\n"
FASTER = "def twice(x):\n    return x * 2\n"
REFUSES = "from tiergate.kernels.dispatch import Unavailable\nraise Unavailable('needs a compiler')\n"


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package with ops `once`, `twice` and `thrice`, of which `cpu` makes `twice` faster and refuses `thrice`."""
    home = tmp_path / f"room_{tmp_path.name}"
    for folder in (home, home / "ops", home / "cpu"):
        folder.mkdir()
        (folder / "__init__.py").write_text("")
    for name in ("once", "twice", "thrice"):
        (home / "ops" / f"{name}.py").write_text(OP.format(name=name))
    (home / "cpu" / "twice.py").write_text(FASTER)
    (home / "cpu" / "thrice.py").write_text(REFUSES)
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module(home.name)
    for name in [name for name in sys.modules if name.split(".")[0] == home.name]:
        del sys.modules[name]


def test_a_file_of_the_ops_name_takes_over(room: ModuleType) -> None:
    twice = import_module(f"{room.__name__}.ops.twice").twice
    assert twice(torch.tensor(5)) == 10
    assert twice.reference(torch.tensor(5)) == 6
    assert twice.on("cpu")(torch.tensor(5)) == 10
    assert twice.choice("cpu") == Choice("cpu")


def test_the_reference_serves_everything_else(room: ModuleType) -> None:
    once = import_module(f"{room.__name__}.ops.once").once
    assert once(torch.tensor(5)) == 6
    assert once.choice("cpu") == Choice("reference")
    twice = import_module(f"{room.__name__}.ops.twice").twice
    assert twice.on("cuda") is twice.reference
    assert twice.on("meta") is twice.reference
    assert twice.choice("cuda") == Choice("reference")


def test_an_implementation_that_cannot_run_says_why(room: ModuleType) -> None:
    thrice = import_module(f"{room.__name__}.ops.thrice").thrice
    assert thrice(torch.tensor(5)) == 6
    assert thrice.choice("cpu") == Choice("reference", "needs a compiler")


def test_an_op_keeps_its_contract() -> None:
    from tiergate.kernels import norm_linear

    assert norm_linear.__doc__
    assert "rms_norm" in norm_linear.__doc__


def test_the_report_names_every_op() -> None:
    import tiergate.kernels

    report = backend_report("cpu")
    exported = {getattr(tiergate.kernels, name) for name in tiergate.kernels.__all__}
    assert set(report.ops) == {op.name for op in exported if hasattr(op, "choice")}
    assert report.cpu == cpu_features()
    text = str(report)
    assert all(f"{name}: " in text for name in report.ops)
    assert f"native core: {report.native}" in text
    assert report.native.startswith(("linear ", "none ("))


def test_cpu_features_are_read_from_the_first_processor() -> None:
    x86 = "processor : 0\nmodel name : Some CPU\nflags : fpu avx2 avx512f amx_bf16\n\nprocessor : 1\nflags : avx_vnni\n"
    found = parse_cpuinfo(x86)
    assert found.model == "Some CPU"
    assert found.features == {"avx2", "avx512f", "amx_bf16"}
    arm = "processor : 0\nFeatures : fp asimd bf16 i8mm\n"
    assert parse_cpuinfo(arm).features == {"asimd", "bf16", "i8mm"}


def test_a_system_without_cpuinfo_has_no_known_features(tmp_path: Path) -> None:
    assert cpu_features(tmp_path / "none").features == frozenset()
