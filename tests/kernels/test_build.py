"""The cache of compiled kernels: what is built anew, what is not, and what happens where nothing can be built."""

from __future__ import annotations

import ctypes
import os
import shutil
import threading
from pathlib import Path

import pytest

from tiergate.kernels import build
from tiergate.kernels.build import built_library, closure, units
from tiergate.kernels.cpu_features import CpuFeatures
from tiergate.kernels.dispatch import Unavailable
from tiergate.kernels.toolchain import LEVELS, Compiler, find_compiler, usable_levels

pytestmark = pytest.mark.skipif(shutil.which("g++") is None and shutil.which("c++") is None, reason="no C++ compiler")

ONCE = """// Names the levels that were built.
#include "shared.h"
extern "C" __attribute__((visibility("default"))) int answer() { return ANSWER; }
"""
PER_LEVEL = """// One function a level.
#define NAME_(level) rows_##level
#define NAME(level) NAME_(level)
extern "C" __attribute__((visibility("default"))) int NAME(TG_LEVEL)() { return TG_LEVEL; }
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "shared.h").write_text('// Shared.\n#include "inner.h"\n')
    (folder / "inner.h").write_text("// Inner.\n#define ANSWER 42\n")
    (folder / "once.cpp").write_text(ONCE)
    (folder / "rows.cpp").write_text(PER_LEVEL)
    return folder


def names(folder: Path, suffix: str) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix == suffix}


def test_a_library_is_built_once_and_a_change_rebuilds_what_it_touches(sources: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with built_library(cache, sources=sources) as first:
        assert ctypes.CDLL(str(first)).answer() == 42
    objects = names(cache, ".o")
    stamps = {path: path.stat().st_mtime_ns for path in cache.glob("*.o")}
    with built_library(cache, sources=sources) as again:
        assert again == first
    assert {path: path.stat().st_mtime_ns for path in cache.glob("*.o")} == stamps
    (sources / "inner.h").write_text("// Inner.\n#define ANSWER 43\n")
    with built_library(cache, sources=sources) as changed:
        assert changed != first
        assert ctypes.CDLL(str(changed)).answer() == 43
    fresh = names(cache, ".o") - objects
    assert len(fresh) == 1
    assert fresh.pop().startswith("once-")
    assert not names(cache, ".part")


def test_files_of_a_level_are_built_for_each_level_that_the_machine_has(sources: Path, tmp_path: Path) -> None:
    with built_library(tmp_path / "cache", sources=sources) as path:
        library = ctypes.CDLL(str(path))
    levels = usable_levels(find_compiler(), build.cpu_features())
    for number, level in enumerate(LEVELS):
        assert hasattr(library, f"rows_{number}") == (level in levels and level.name != "amx")


def test_units_cover_every_file_and_level() -> None:
    found = units(build.SOURCES, LEVELS, ("-O3",))
    assert {unit.source for unit in found} == set(build.SOURCES.glob("*.cpp"))
    amx = {unit.source.stem for unit in found if "-DTG_LEVEL=3" in unit.flags}
    assert amx <= set(build.WITH_AMX)
    assert all("-DTG_HAVE_AMX" in unit.flags for unit in found if unit.source.stem not in build.PER_LEVEL)


def test_headers_are_found_through_headers(sources: Path) -> None:
    assert {path.name for path in closure(sources / "once.cpp")} == {"once.cpp", "shared.h", "inner.h"}


def test_levels_end_where_the_processor_or_the_compiler_does() -> None:
    compiler = find_compiler()
    everything = LEVELS[-1].features
    assert [level.name for level in usable_levels(compiler, CpuFeatures("x86_64", "", frozenset()))] == ["scalar"]
    without = CpuFeatures("x86_64", "", everything - {"avx512_bf16"})
    assert [level.name for level in usable_levels(compiler, without)] in (["scalar", "avx2"], ["scalar"])
    assert not compiler.accepts(["-mno-such-thing"])


def test_a_source_that_does_not_compile_says_why(sources: Path, tmp_path: Path) -> None:
    (sources / "once.cpp").write_text("// Broken.\nint answer( { }\n")
    with pytest.raises(Unavailable, match=r"once\.cpp"), built_library(tmp_path / "cache", sources=sources):
        pass
    assert not names(tmp_path / "cache", ".so") | names(tmp_path / "cache", ".part")


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="no C\\+\\+ compiler"), built_library(tmp_path / "cache"):
        pass
    with pytest.raises(Unavailable, match="could not be run"):
        Compiler(str(tmp_path / "gone"), "").run([])


@pytest.mark.parametrize("fault", ["a file", "open to others"])
def test_a_folder_that_cannot_be_used_is_replaced_by_a_temporary_one(fault: str, sources: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    if fault == "a file":
        cache.write_text("")
    else:
        cache.mkdir()
        cache.chmod(0o777)
    with built_library(cache, sources=sources) as path:
        assert cache not in path.parents
        library = ctypes.CDLL(str(path))
    assert not path.exists()
    assert library.answer() == 42


def test_two_who_build_at_once_build_once(sources: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    found: list[Path] = []

    def work() -> None:
        with built_library(cache, sources=sources) as path:
            found.append(path)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(set(found)) == 1


def test_what_nobody_used_for_long_is_removed(sources: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    old, kept = cache / "linear-0.o", cache / "notes.txt"
    for path in (old, kept):
        path.write_text("")
        os.utime(path, (1, 1))
    with built_library(cache, sources=sources) as library:
        assert library.is_file()
    assert not old.exists()
    assert kept.exists()
