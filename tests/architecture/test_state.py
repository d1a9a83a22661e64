"""Every piece of state has an owner: no module keeps any, and only one reads the environment."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from support.source import sources

MUTABLE_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTABLE_MAKERS = {
    "list", "dict", "set", "bytearray", "defaultdict", "deque", "Counter", "OrderedDict", "count", "cycle", "Queue",
    "SimpleQueue", "WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "Lock", "RLock", "Event", "ContextVar",
}  # fmt: skip
MUTATORS = {
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update",
}  # fmt: skip
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*|__[a-z]+__")

READS_ENVIRONMENT = {
    "gateway/config.py": "settings",
    "engine/launch.py": "hands its own environment on to the engine process; no setting is read from it",
}


def test_no_module_keeps_state() -> None:
    wrong = [f"{source.at(node)}: {why}" for source in sources() for node, why in _state(source.tree)]
    assert not wrong, "\n".join(wrong)


def test_only_the_settings_come_from_the_environment() -> None:
    found = {str(source.path) for source in sources() if any(_environment(source.tree))}
    assert found <= READS_ENVIRONMENT.keys(), found - READS_ENVIRONMENT.keys()


def test_the_rules_find_what_they_forbid() -> None:
    kept = """
cache = {}
seen: set[str] = set()
ids = itertools.count()
TABLE = {"a": 1}
NAMES = []
__all__ = ["x"]
pairs = tuple(x for x in "ab")

def f():
    global total
    TABLE["b"] = 2
    NAMES.append("c")
    del TABLE["a"]
    TABLE |= {}
"""
    lines = {node.lineno for node, _ in _state(ast.parse(kept))}
    assert lines == {2, 3, 4, 11, 12, 13, 14, 15}
    for reading in ("os.environ['x']", "os.getenv('x')", "from os import environ", "import os; x = os.environb"):
        assert list(_environment(ast.parse(reading))), reading


def _state(tree: ast.Module) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Module-level names bound to something that can change, and changes of module-level names."""
    names: set[str] = set()
    for node in tree.body:
        for name, value in _bindings(node):
            names.add(name)
            if not CONSTANT.fullmatch(name) and _mutable(value):
                yield node, f"{name} can change"
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Global):
            yield inner, f"global {', '.join(inner.names)}"
        elif (
            (isinstance(inner, ast.Subscript) and not isinstance(inner.ctx, ast.Load) and _named(inner.value, names))
            or (isinstance(inner, ast.AugAssign) and _named(inner.target, names))
            or (
                isinstance(inner, ast.Call)
                and isinstance(inner.func, ast.Attribute)
                and inner.func.attr in MUTATORS
                and _named(inner.func.value, names)
            )
        ):
            yield inner, "a module's constant is changed"


def _bindings(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets, value = [node.target], node.value
    else:
        return
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id, value


def _mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        maker = value.func
        name = maker.attr if isinstance(maker, ast.Attribute) else maker.id if isinstance(maker, ast.Name) else ""
        return name in MUTABLE_MAKERS
    return isinstance(value, MUTABLE_DISPLAYS)


def _named(node: ast.expr, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names and CONSTANT.fullmatch(node.id) is not None


def _environment(tree: ast.Module) -> Iterator[ast.AST]:
    words = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    for node in ast.walk(tree):
        if (isinstance(node, ast.Attribute) and node.attr in words and _named_os(node.value)) or (
            isinstance(node, ast.ImportFrom) and node.module == "os" and any(a.name in words for a in node.names)
        ):
            yield node


def _named_os(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "os"
