"""Renders a model's chat template, with Hugging Face's conventions, in jinja2's sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import BadPrompt, ModelMissing
from .guard import MARKS, Covered
from .shape import Shape, Shapes
from .types import Message, ToolSpec


class ChatTemplate:
    """A compiled template. A template that looks at the clock gets `now`."""

    def __init__(self, source: str, tokens: Mapping[str, str], now: Callable[[], datetime] = datetime.now) -> None:
        """`tokens` are the names that templates use for special tokens (`bos_token`) and their strings."""
        environment = _environment(now)
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelMissing(f"the chat template does not compile: {error}") from error
        self._tokens = dict(tokens)
        self._shapes = Shapes(_environment(now), source, self._tokens)
        self._reasons = "reasoning_content" in source
        self.takes_tools = "tools" in meta.find_undeclared_variables(tree)

    def foreign(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[list[Any], list[Any] | None]:
        """Messages (without their roles) and tools as the template expects them: nothing in them is to be trusted."""
        turns = [self._turn(message) for message in messages]
        return turns, [_tool(tool) for tool in tools] if tools and self.takes_tools else None

    def render(self, foreign: Covered, roles: Sequence[str], *, thinking: bool) -> str:
        """The prompt up to where the answer begins, of what `foreign` gave, covered. Raises `BadPrompt`."""
        turns, tools = foreign.value
        for turn, role in zip(turns, roles, strict=True):
            turn["role"] = role
        try:
            return self._template.render(
                messages=turns,
                tools=tools,
                documents=None,
                add_generation_prompt=True,
                enable_thinking=thinking,
                **self._tokens,
            )
        except Exception as error:  # the model's own code: whatever it trips over, these messages do not suit it
            reason = foreign.uncover(str(error))[:300] or type(error).__name__
            raise BadPrompt(f"the model's chat template refuses these messages: {reason}") from error

    def shape(self, roles: Sequence[str], *, thinking: bool) -> Shape | None:
        """The prompt of any `bare` messages of these roles, where it does not depend on what they say; no tools."""
        return self._shapes.find(roles, thinking=thinking)

    def bare(self, message: Message) -> bool:
        """Whether all that this template sees of a message are its role and a content that is not empty."""
        return bool(message.content) and not (
            message.name or message.tool_call_id or message.tool_calls or (self._reasons and message.reasoning)
        )

    def _turn(self, message: Message) -> dict[str, Any]:
        turn: dict[str, Any] = {"content": message.content}
        if message.name:
            turn["name"] = message.name
        if message.tool_call_id:
            turn["tool_call_id"] = message.tool_call_id
        if message.reasoning and self._reasons:
            turn["reasoning_content"] = message.reasoning
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _arguments(call.arguments)},
                }
                for call in message.tool_calls
            ]
        return turn


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def read_template(folder: Path) -> ChatTemplate:
    """The template of a model folder. Raises `ModelMissing` where there is none."""
    config = _read_json(folder / "tokenizer_config.json")
    try:
        source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except FileNotFoundError:
        source = config.get("chat_template") or ""
        if isinstance(source, list):  # several by name, as older repositories have them
            source = next((entry["template"] for entry in source if entry.get("name") == "default"), "")
    if not source:
        raise ModelMissing(f"{folder.name}: the model has no chat template")
    tokens = {}
    for name, value in config.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                tokens[name] = text
    return ChatTemplate(source, tokens)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelMissing(f"{path.parent.name}/{path.name} is damaged: {error}") from error
    return found if isinstance(found, dict) else {}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _arguments(text: str) -> Any:
    """Templates write arguments out with `tojson`, so they want the value; text that is no object stays text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja2's own filter; a guard's marks stay as they are."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    if not ensure_ascii or text.isascii():
        return text
    return "".join(char if char.isascii() or ord(char) in MARKS else json.dumps(char)[1:-1] for char in text)


class _Generation(Extension):
    """`{% generation %}` marks what a trainer learns from; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
