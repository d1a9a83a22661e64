"""What is written down about the tree equals the tree."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

from support.readme_map import NATIVE, OTHERS, TITLE, code_map, native_docs, with_map
from support.source import ALL_ROOMS, ROOMS, ROOT, packages, sources

MACHINE_PATH = re.compile(r"(?<![\w.~$}>-])/(?:work|tmp|root|home|opt|mnt|Users)/|[A-Z]:\\\\")
REGISTRY_HOST = re.compile(
    r"pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|download\.pytorch\.org|deb\.debian\.org|nodejs\.org|mirror\.", re.I
)
TEXTS = (".py", ".md", ".toml", ".html", ".sh", ".cpp", ".h", ".jinja", ".lua")


def _project() -> dict[str, object]:
    loaded: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    return loaded


def test_every_package_is_listed() -> None:
    setuptools = _project()["setuptools"]
    assert isinstance(setuptools, dict)
    assert sorted(setuptools["packages"]) == sorted(f"tiergate.{package}" for package in packages())
    assert setuptools["package-dir"] == {f"tiergate.{room}": room for room in ROOMS}


def test_every_package_has_a_face_of_its_own() -> None:
    missing = [package for package in packages() if not (ROOT / package.replace(".", "/") / "__init__.py").is_file()]
    assert not missing


def test_rooms_import_only_what_is_declared() -> None:
    """Of packages from elsewhere: what a room imports is a dependency of its own, and not by the grace of another's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[\[<>=]", line)[0] for line in project["dependencies"]}
    known = {"pyzmq": "zmq", **{name: name for name in declared if name != "pyzmq"}}
    assert declared == known.keys()
    imported = {module.split(".")[0] for source in sources() for _, module in source.imports()}
    assert imported - sys.stdlib_module_names - {"tiergate"} <= set(known.values())


def test_pyright_checks_every_room() -> None:
    pyright = _project()["pyright"]
    assert isinstance(pyright, dict)
    assert pyright["include"] == [f"build/types/tiergate/{room}" for room in ROOMS]


def test_the_tests_know_every_room() -> None:
    tree = ast.parse((ROOT / "tests" / "conftest.py").read_text())
    (rooms,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOMS"
    )
    assert rooms == ALL_ROOMS


def test_every_module_says_what_it_is() -> None:
    assert not [str(source.path) for source in sources() if not ast.get_docstring(source.tree)]


def test_the_map_in_the_readme_is_the_tree() -> None:
    """Every file once, modules with the first line of their docstring; `make map` writes it."""
    readme = (ROOT / "README.md").read_text()
    title = readme.index(TITLE)
    shown = [line for line in readme[title:].splitlines() if re.match(r"- `[^`]+/[^`]+`: ", line)]
    wanted = [line for line in code_map().splitlines() if line]
    assert sorted(set(wanted) - set(shown)) == [], "not in the map"
    assert sorted(set(shown) - set(wanted)) == [], "in the map, not in the tree"
    assert with_map(readme) == readme


def test_files_that_are_no_modules_are_described_too() -> None:
    files = (path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file())
    others = {str(path.relative_to(ROOT)) for path in files if path.suffix != ".py" and "__pycache__" not in path.parts}
    assert {path for path in others if Path(path).suffix not in NATIVE} == OTHERS.keys()
    assert not [path for room in ROOMS for path, doc in native_docs(room).items() if not doc]


def test_the_project_names_no_machine_and_no_registry() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in _texts()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if MACHINE_PATH.search(line) or REGISTRY_HOST.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_words_are_found() -> None:
    for line in ("see /" + "tmp/x", "('/" + "home/me')", "https://pypi" + ".org/simple"):
        assert MACHINE_PATH.search(line) or REGISTRY_HOST.search(line), line
    for line in ("tiers/" + "tmp/x", "tmp_path / 'x'", "~/.cache/tiergate", "a/" + "opt/b", "{root}/" + "home/x"):
        assert not MACHINE_PATH.search(line), line


def _texts() -> list[Path]:
    names = [ROOT / "README.md", ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / ".ci" / "run"]
    folders = [ROOT / room for room in ROOMS] + [ROOT / "tests"]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in TEXTS and path.is_file()]
    return names + sorted(path for path in files if "__pycache__" not in path.parts)
