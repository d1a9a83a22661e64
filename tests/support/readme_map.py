"""Writes the map of the code into README.md, a line a file: the first line of its docstring or comment. `make map`."""

from __future__ import annotations

import ast
from pathlib import Path

from support.source import ROOMS, ROOT, sources

TITLE = "## Map of the code"
OTHERS = {
    "gateway/page.html": "The chat page at `/`: one file with its style and script, and nothing from elsewhere.",
    "tiers/evaluation.txt": "What `tiergate models check` has models read: three chapters of Jane Austen.",
    "tiers/smollm2_thinking.jinja": "The chat template of the embedded deep model, which can open a thinking block.",
}
"""What the files are that have no docstring."""
NATIVE = (".h", ".cpp")


def native_docs(room: str) -> dict[str, str]:
    """The first line of each C++ file's opening comment, empty where there is none."""
    docs = {}
    for path in (ROOT / room).rglob("*"):
        if path.suffix in NATIVE:
            first = path.read_text().split("\n", 1)[0]
            docs[str(path.relative_to(ROOT))] = first.removeprefix("//").strip() if first.startswith("//") else ""
    return docs


def code_map() -> str:
    """The lines that README.md has under its title, a paragraph a room."""
    rooms = []
    for room in ROOMS:
        docs = {
            str(source.path): (ast.get_docstring(source.tree) or "").split("\n")[0]
            for source in sources()
            if source.room == room
        }
        docs |= {path: doc for path, doc in OTHERS.items() if path.startswith(f"{room}/")}
        docs |= native_docs(room)
        rooms.append("".join(f"- `{path}`: {docs[path]}\n" for path in sorted(docs, key=Path)))
    return "\n".join(rooms)


def with_map(readme: str) -> str:
    """The README with a fresh map: what lies between its title and the next one of that level is replaced."""
    before, _, rest = readme.partition(TITLE)
    end = rest.find("\n## ")
    after = "" if end < 0 else rest[end:]
    return f"{before.rstrip()}\n\n{TITLE}\n\n{code_map()}{after}"


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(with_map(path.read_text()))
