"""Finds out what a chat template makes of a conversation without looking at what is said in it.

Most templates only put control strings, roles and line ends around contents. Rendered with contents that can be joined
to other text and nothing else, such a template shows where they go, and does so for every conversation of these roles.
A template that asks anything else of a content, its length, what it begins with, how it looks trimmed, is refused by
the content itself, and has to be rendered each time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from jinja2 import nodes
from jinja2.environment import Environment

Shape = tuple[str | int, ...]
"""The template's own text, and the places of the messages whose contents stand between."""

_OPEN, _SHUT = "\U000f0000", "\U000f0001"
_PLACE: Final = re.compile(f"{_OPEN}([0-9]+){_SHUT}")
_CAPTURING: Final = (
    nodes.AssignBlock, nodes.Block, nodes.CallBlock, nodes.EvalContextModifier, nodes.Extends, nodes.FilterBlock,
    nodes.FromImport, nodes.Import, nodes.Include, nodes.Macro,
)  # fmt: skip
"""Whatever hands a template its own output back, which holds contents as plain text."""
_TRUE_OF_TEXT: Final = ("defined", "iterable", "sequence", "string")
_FALSE_OF_TEXT: Final = (
    "boolean", "callable", "false", "float", "integer", "mapping", "none", "number", "true", "undefined",
)  # fmt: skip


class Inspected(Exception):
    """A template asked more of a content than to be joined."""


class _Content:
    """Stands for text that is not empty, or for a sum of such texts and plain ones."""

    __slots__ = ("_parts",)

    def __init__(self, *parts: str | int) -> None:
        self._parts = parts

    def __add__(self, other: object) -> _Content:
        return _Content(*self._parts, *_parts(other))

    def __radd__(self, other: object) -> _Content:
        return _Content(*_parts(other), *self._parts)

    def __bool__(self) -> bool:
        return True

    def _refuse(self, *_: object) -> NoReturn:
        raise Inspected

    # Everything that would otherwise quietly differ from what the text does, or make its caller try something else.
    __contains__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __getattr__ = _refuse
    __getitem__ = __iter__ = __len__ = __str__ = __repr__ = __format__ = _refuse
    __int__ = __float__ = __index__ = __mod__ = __rmod__ = __mul__ = __rmul__ = __call__ = _refuse


def _parts(value: object) -> tuple[str | int, ...]:
    if type(value) is str:
        return (value,)
    if isinstance(value, _Content):
        return value._parts
    raise Inspected


class Shapes:
    """The shapes of one template. Immutable; safe in threads."""

    def __init__(self, environment: Environment, source: str, values: Mapping[str, Any]) -> None:
        """`environment` is changed; `values` are the template's further variables. `source` compiles in it."""
        self._values = values
        tree = environment.parse(source)
        captures = next(tree.find_all(_CAPTURING), None) is not None
        recursive = any(loop.recursive for loop in tree.find_all(nodes.For))
        foreign = _OPEN in source or _OPEN in "".join(str(value) for value in values.values())
        self._template = None
        if not (captures or recursive or foreign):
            _watch(environment)
            self._template = environment.from_string(source)

    def find(self, roles: Sequence[str], *, thinking: bool) -> Shape | None:
        """The shape of conversations of these roles, whose contents are not empty; None where contents matter."""
        if self._template is None:
            return None
        turns = [{"content": _Content(place), "role": role} for place, role in enumerate(roles)]
        try:
            rendered = self._template.render(
                messages=turns, tools=None, documents=None, add_generation_prompt=True, enable_thinking=thinking,
                **self._values,
            )  # fmt: skip
        except Exception:  # the model's own code: what it really says to these messages, rendering them will tell
            return None
        pieces = _PLACE.split(rendered)
        return tuple(int(piece) if at % 2 else piece for at, piece in enumerate(pieces) if at % 2 or piece)


def _watch(environment: Environment) -> None:
    """Have an environment write contents as their places, and refuse what is not a matter of roles alone."""
    environment.finalize = _written
    tests: dict[str, Any] = dict(environment.tests)
    environment.tests = tests
    for name in _TRUE_OF_TEXT:
        tests[name] = _answering(tests[name], True)
    for name in _FALSE_OF_TEXT:
        tests[name] = _answering(tests[name], False)
    tests["sameas"] = _refuse
    environment.filters = environment.filters | {"random": _refuse}
    environment.globals |= {"strftime_now": _refuse, "lipsum": _refuse}


def _written(value: object) -> object:
    if isinstance(value, _Content):
        return "".join(f"{_OPEN}{part}{_SHUT}" if type(part) is int else str(part) for part in value._parts)
    return value


def _answering(test: Callable[[Any], bool], of_text: bool) -> Callable[[Any], bool]:
    return lambda value: of_text if isinstance(value, _Content) else test(value)


def _refuse(*_: object, **__: object) -> NoReturn:
    raise Inspected
