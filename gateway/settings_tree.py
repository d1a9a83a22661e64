"""Frozen dataclass trees as settings: overlaid by plain values, explained by their own docstrings.

Nothing here knows which settings there are. A tree is dataclasses within dataclasses, dictionaries of dataclasses
(tables under names of the user's choice), and leaves: booleans, numbers, strings, literals, tuples and dictionaries of
those, each of them optional. The docstring below a field explains it; there is no second place to keep up to date.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union

import orjson

from .errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of a tree: where it is, what it holds, what it is for."""

    path: str
    value: Any
    doc: str


def overlay(base: T, values: Mapping[str, Any], origin: str, at: str = "") -> T:
    """`base`, a dataclass, with `values` laid over it, key by key. `origin` is named in complaints.

    A table of a dictionary of dataclasses that `base` lacks starts from that class's defaults; `false` instead of a
    table takes it away. Raises `ConfigError` for unknown keys and wrong types.
    """
    hints = typing.get_type_hints(type(base))
    changes: dict[str, Any] = {}
    for key, value in values.items():
        if key not in hints:
            raise unknown(_join(at, key), hints, origin, at)
        changes[key] = _value(hints[key], getattr(base, key), value, origin, _join(at, key))
    return dataclasses.replace(base, **changes)  # type: ignore[type-var]


def unknown(path: str, known: Mapping[str, Any], origin: str, at: str = "") -> ConfigError:
    key = path.rsplit(".", 1)[-1]
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {_join(at, near[0])!r}?" if near else f"known here: {', '.join(known)}"
    return ConfigError(f"{origin}: unknown setting {path!r}; {hint}")


def _join(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _value(hint: Any, base: Any, value: Any, origin: str, at: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise _wrong("a table", value, origin, at)
        return overlay(base, value, origin, at)
    table = table_type(hint)
    if table is None:
        return _leaf(hint, value, origin, at)
    if not isinstance(value, Mapping):
        raise _wrong("a table of tables", value, origin, at)
    tables = dict(base)
    for name, inner in value.items():
        if inner is False:
            tables.pop(name, None)
        elif isinstance(inner, Mapping):
            tables[name] = overlay(tables.get(name, table()), inner, origin, _join(at, name))
        else:
            raise _wrong("a table, or false to remove it", inner, origin, _join(at, name))
    return tables


def table_type(hint: Any) -> Any:
    """The dataclass of a dictionary of dataclasses, else None."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is dict and dataclasses.is_dataclass(arguments[1]):
        return arguments[1]
    return None


def _leaf(hint: Any, value: Any, origin: str, at: str) -> Any:
    """The checked value of a leaf; lists become tuples, whole numbers become floats where floats are wanted."""
    kind, arguments = typing.get_origin(hint), typing.get_args(hint)
    if kind in (Union, types.UnionType):
        if value is None:
            return None
        return _leaf(next(one for one in arguments if one is not types.NoneType), value, origin, at)
    if kind is Literal:
        if value not in arguments:
            raise _wrong(_expected(hint), value, origin, at)
        return value
    if kind is tuple:
        if not isinstance(value, list | tuple):
            raise _wrong(_expected(hint), value, origin, at)
        return tuple(_leaf(arguments[0], one, origin, f"{at}[{place}]") for place, one in enumerate(value))
    if kind is dict:
        if not isinstance(value, Mapping):
            raise _wrong(_expected(hint), value, origin, at)
        return {key: _leaf(arguments[1], one, origin, _join(at, key)) for key, one in value.items()}
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise _wrong(_expected(hint), value, origin, at)
    return value


def _expected(hint: Any) -> str:
    kind, arguments = typing.get_origin(hint), typing.get_args(hint)
    if kind in (Union, types.UnionType):
        return _expected(arguments[0])
    if kind is Literal:
        return "one of " + ", ".join(repr(one) for one in arguments)
    if kind is tuple:
        return "a list"
    if kind is dict:
        return "a table"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[hint]


def _wrong(expected: str, value: Any, origin: str, at: str) -> ConfigError:
    shown = repr(value)
    return ConfigError(f"{origin}: {at!r} must be {expected}, not {shown if len(shown) <= 60 else shown[:57] + '...'}")


def from_text(root: type, path: tuple[str, ...], text: str, origin: str) -> dict[str, Any]:
    """What `text` says about the leaf at `path`, as nested plain values ready for `overlay`.

    Text stands for itself where text is wanted. Lists may be written with commas or as JSON, tables as JSON, and
    nothing at all stands for "not set" where that is possible. Raises `ConfigError`.
    """
    hint: Any = root
    for depth, key in enumerate(path):
        at = ".".join(path[:depth])
        if dataclasses.is_dataclass(hint):
            hints = typing.get_type_hints(hint)
            if key not in hints:
                raise unknown(_join(at, key), hints, origin, at)
            hint = hints[key]
        elif typing.get_origin(hint) is dict:
            hint = typing.get_args(hint)[1]
        else:
            raise ConfigError(f"{origin}: {at!r} is a value, not a table")
    value = _read(hint, text, origin, ".".join(path))
    for key in reversed(path):
        value = {key: value}
    return typing.cast(dict[str, Any], value)


def _read(hint: Any, text: str, origin: str, at: str) -> Any:
    kind, arguments = typing.get_origin(hint), typing.get_args(hint)
    if kind in (Union, types.UnionType):
        return None if text == "" else _read(arguments[0], text, origin, at)
    if hint is str or kind is Literal:
        return text
    if kind is tuple and not text.lstrip().startswith("["):
        return [_read(arguments[0], one.strip(), origin, at) for one in text.split(",") if one.strip()]
    if hint is bool and text.lower() in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        return text.lower() in ("true", "1", "yes", "on")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        expected = "a table" if dataclasses.is_dataclass(hint) else _expected(hint)
        raise _wrong(expected, text, origin, at) from None


def leaves(tree: Any, at: str = "") -> Iterator[Setting]:
    """Every leaf of a dataclass tree, in the order of the fields."""
    docs = field_docs(type(tree))
    hints = typing.get_type_hints(type(tree))
    for field in dataclasses.fields(tree):
        value, path = getattr(tree, field.name), _join(at, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, path)
        elif table_type(hints[field.name]) is not None:
            for name, inner in value.items():
                yield from leaves(inner, _join(path, name))
        else:
            yield Setting(path, value, docs.get(field.name, ""))


def paths(values: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """The dotted paths that nested plain values set."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from paths(value, _join(at, key))
        else:
            yield _join(at, key)


def field_docs(cls: type) -> dict[str, str]:
    """The docstring below each field of a dataclass, as one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            text = ast.literal_eval(below.value) if isinstance(below.value, ast.Constant) else None
            if isinstance(text, str):
                docs[field.target.id] = " ".join(text.split())
    return docs
