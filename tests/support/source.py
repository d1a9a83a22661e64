"""The source tree as data: files and syntax trees of the rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ALL_ROOMS = ("agents", "budget", "engine", "gateway", "kernels", "tiers")
ROOMS = tuple(room for room in ALL_ROOMS if (ROOT / room).is_dir())


@dataclass(frozen=True, slots=True)
class Source:
    """One module of a room."""

    path: Path
    """Relative to the root, as `budget/stores/memory.py`."""
    tree: ast.Module

    @property
    def room(self) -> str:
        return self.path.parts[0]

    @property
    def depth(self) -> int:
        """Folders between the file and the root; a relative import with more dots than that leaves the room."""
        return len(self.path.parts) - 1

    def at(self, node: ast.AST) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}"

    def imports(self) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
        """Every absolute import anywhere in the file, with the name of the imported module."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                yield node, node.module or ""


@cache
def sources() -> tuple[Source, ...]:
    """All modules of all rooms, by path."""
    paths = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return tuple(Source(path, ast.parse((ROOT / path).read_text(), str(path))) for path in paths)


def packages() -> set[str]:
    """Every folder of a room that holds a module, as a dotted path below `tiergate`."""
    return {".".join(source.path.parent.parts) for source in sources()}
