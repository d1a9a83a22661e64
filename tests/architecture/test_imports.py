"""Who may import whom."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Callable

import pytest

from support.source import ROOMS, Source, sources

MAY_IMPORT = {
    "gateway": {"agents", "tiers", "budget"},
    "agents": {"tiers", "budget"},
    "tiers": {"engine", "budget"},
    "engine": {"kernels"},
    "budget": set[str](),
    "kernels": set[str](),
}

TORCH_ROOMS = {"engine", "kernels"}
"""The only rooms that may know torch."""

NOT_IN_ENGINE = {
    "aiohttp", "asyncio", "h11", "http", "httptools", "httpx", "jinja2", "requests", "sentencepiece", "starlette",
    "tokenizers", "transformers", "urllib", "uvicorn",
}  # fmt: skip
"""The engine turns ids into ids: no HTTP, no event loop, no text."""

ENGINE_EXCEPTIONS = {
    ("engine/convert/gguf_tokenizer.py", "tokenizers"): "writes the tokenizer.json of a converted model; never serves",
}

NOWHERE = {"transformers", "litellm", "pickle"}
"""The oracle of tests, what only one backend may know, and what nobody may decode."""


def test_every_room_has_a_rule() -> None:
    assert set(ROOMS) <= MAY_IMPORT.keys()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_it_may(room: str) -> None:
    wrong = [
        f"{source.at(node)} imports {module}"
        for source in sources()
        if source.room == room
        for node, module in source.imports()
        if module.split(".")[0] == "tiergate" and not _allowed(node, module, MAY_IMPORT[room])
    ]
    assert not wrong, "\n".join(wrong)


def _allowed(node: ast.Import | ast.ImportFrom, module: str, rooms: set[str]) -> bool:
    """Across rooms: `from tiergate.<room> import name`, and the name is one of the face."""
    room = module.removeprefix("tiergate.")
    if isinstance(node, ast.Import) or room not in rooms:
        return False
    face = importlib.import_module(module)
    return {alias.name for alias in node.names} <= set(face.__all__)


def test_relative_imports_stay_in_the_room() -> None:
    wrong = [
        source.at(node)
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.level > source.depth
    ]
    assert not wrong, wrong


def test_torch_is_known_only_where_tensors_are() -> None:
    assert not _importers(lambda source, top: top == "torch" and source.room not in TORCH_ROOMS)


def test_the_engine_knows_no_http_no_event_loop_and_no_text() -> None:
    found = _importers(lambda source, top: top in NOT_IN_ENGINE and source.room == "engine")
    assert found == ENGINE_EXCEPTIONS.keys()


def test_what_no_room_imports() -> None:
    assert not _importers(lambda source, top: top in NOWHERE)


def _importers(rule: Callable[[Source, str], bool]) -> set[tuple[str, str]]:
    return {
        (str(source.path), module.split(".")[0])
        for source in sources()
        for _, module in source.imports()
        if rule(source, module.split(".")[0])
    }


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("tiergate.engine", "torch"), ("tiergate.engine", "numpy"), ("tiergate.engine", "safetensors"),
        ("tiergate.gateway", "torch"), ("tiergate.gateway", "numpy"), ("tiergate.budget", "sqlite3"),
    ],
)  # fmt: skip
def test_a_face_stays_light(module: str, heavy: str) -> None:
    """Imported in an interpreter of its own, a face does not bring what only some of those behind it need."""
    script = f"import sys; sys.path[:0] = {sys.path!r}; import {module}; sys.exit({heavy!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or f"{module} brings {heavy}"


def test_the_rules_find_what_they_forbid() -> None:
    """The rules above on sources that break them: a rule that finds nothing would pass everything."""
    bad = Source(
        next(source.path for source in sources() if source.room == "engine"),
        ast.parse("import tiergate.kernels\nfrom tiergate.budget import Ask\nfrom tiergate.kernels.ops import x\n"),
    )
    assert [_allowed(node, module, MAY_IMPORT["engine"]) for node, module in bad.imports()] == [False] * 3
    good = ast.parse("from tiergate.budget import Ask").body[0]
    assert isinstance(good, ast.ImportFrom)
    assert _allowed(good, "tiergate.budget", MAY_IMPORT["tiers"])
    hidden = ast.parse("from tiergate.budget import Hold").body[0]
    assert isinstance(hidden, ast.ImportFrom)
    assert not _allowed(hidden, "tiergate.budget", MAY_IMPORT["tiers"])
