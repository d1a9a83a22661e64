"""OpenAI's messages and tools to ours. Pure; every complaint is a `BadRequest` that names the place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from tiergate.tiers import Message, ToolCall, ToolSpec

from . import fields
from .errors import BadRequest
from .lookalikes import Shape

MOST_MESSAGES = 2048
MOST_PARTS = 2048
MOST_TOOLS = 128
MOST_CALLS = 128
ROLES: Mapping[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
MESSAGE = Shape(
    known=frozenset(
        (
            "role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal", "audio", "annotations",
        )
    ),
    answers="assistant",
)  # fmt: skip
TOOL = Shape(
    known=frozenset(("type", "function")),
    inside={"function": Shape(known=frozenset(("name", "description", "parameters", "strict")))},
)
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def read_messages(body: Mapping[str, Any]) -> tuple[Message, ...]:
    """One or more messages whose tool results answer the calls right before them."""
    items = fields.array(body, "messages", longest=MOST_MESSAGES)
    if items is None:
        raise fields.missing("messages")
    if not items:
        raise BadRequest("Invalid 'messages': at least one message is needed.", "messages", "array_below_min_length")
    messages = tuple([_message(item, f"messages[{place}]") for place, item in enumerate(items)])
    _match_results(messages)
    return messages


def _message(item: Any, at: str) -> Message:
    if type(item) is not dict:
        raise fields.wrong_type(at, "an object", item)
    name = fields.string(item, "role", at=at)
    if name is None:
        raise fields.missing(f"{at}.role")
    role = ROLES.get(name)
    if role is None:
        raise fields.bad_choice(f"{at}.role", tuple(ROLES), name)
    if role != "assistant":
        content = _content(item, at)
        if content is None:
            raise fields.missing(f"{at}.content")
        answers = _needed(item, "tool_call_id", at) if role == "tool" else ""
        return Message(role=role, content=content, tool_call_id=answers, name=fields.string(item, "name", at=at) or "")
    if item.get("function_call") is not None:
        raise fields.unsupported(f"{at}.function_call", "Use 'tool_calls'.")
    # A turn of ours that was cut within its thinking has no content, and clients send it back like that.
    return Message(
        role=role,
        content=_content(item, at) or "",
        reasoning=_reasoning(item),
        tool_calls=_calls(item, at),
        name=fields.string(item, "name", at=at) or "",
    )


def _content(item: Mapping[str, Any], at: str) -> str | None:
    """The text of a message, whose parts are joined; None when there is none at all."""
    content = item.get("content")
    if content is None or type(content) is str:
        return content
    if type(content) is not list:
        raise fields.wrong_type(f"{at}.content", "a string or an array of parts", content)
    parts = fields.array(item, "content", longest=MOST_PARTS, at=at) or []
    return "".join([_part(part, f"{at}.content[{place}]") for place, part in enumerate(parts)])


def _part(part: Any, at: str) -> str:
    if type(part) is not dict:
        raise fields.wrong_type(at, "an object", part)
    kind = fields.string(part, "type", at=at)
    if kind is None:
        raise fields.missing(f"{at}.type")
    if kind not in ("text", "refusal"):
        text = f"Invalid content part: models here read text, not {fields.cut(kind, 40)!r}."
        raise BadRequest(text, f"{at}.type", "unsupported_value")
    return _needed(part, kind, at, empty=True)


def _reasoning(item: Mapping[str, Any]) -> str:
    """Thinking that a client sends back, in whichever shape its library keeps it; never an error."""
    for key in ("reasoning_content", "reasoning"):
        text = item.get(key)
        if isinstance(text, str) and text:
            return text
    blocks = item.get("thinking_blocks")
    if not isinstance(blocks, list):
        return ""
    texts = (block.get("thinking") for block in blocks if isinstance(block, dict))
    return "".join(text for text in texts if isinstance(text, str))


def _calls(item: Mapping[str, Any], at: str) -> tuple[ToolCall, ...]:
    calls = fields.array(item, "tool_calls", longest=MOST_CALLS, at=at)
    return tuple(_call(call, f"{at}.tool_calls[{place}]") for place, call in enumerate(calls or ()))


def _call(call: Any, at: str) -> ToolCall:
    if type(call) is not dict:
        raise fields.wrong_type(at, "an object", call)
    _function_type(call, at)
    function = fields.mapping(call, "function", at=at)
    if function is None:
        raise fields.missing(f"{at}.function")
    return ToolCall(
        id=_needed(call, "id", at),
        name=_needed(function, "name", f"{at}.function"),
        # A call without arguments may carry an empty text.
        arguments=_needed(function, "arguments", f"{at}.function", empty=True),
    )


def _needed(item: Mapping[str, Any], name: str, at: str, *, empty: bool = False) -> str:
    value = fields.string(item, name, at=at)
    if value is None or (not value and not empty):
        raise fields.missing(fields.path(at, name))
    return value


def _function_type(item: Mapping[str, Any], at: str) -> None:
    kind = fields.string(item, "type", at=at)
    if kind is None:
        raise fields.missing(f"{at}.type")
    if kind != "function":
        raise fields.bad_choice(f"{at}.type", ("function",), kind)


def _match_results(messages: tuple[Message, ...]) -> None:
    """Every result answers a call of the assistant turn before it, and every call is answered before the next turn."""
    waiting: set[str] = set()
    for place, message in enumerate(messages):
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                text = (
                    f"The 'tool_call_id' {message.tool_call_id[:80]!r} answers no call of the assistant message before."
                )
                raise BadRequest(text, f"messages[{place}].tool_call_id")
            waiting.discard(message.tool_call_id)
            continue
        if waiting:
            listed = ", ".join(sorted(waiting))[:200]
            raise BadRequest(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. These have no response: {listed}.",
                f"messages[{place}].role",
            )
        for index, call in enumerate(message.tool_calls):
            if call.id in waiting:
                raise BadRequest("Tool call ids must differ.", f"messages[{place}].tool_calls[{index}].id")
            waiting.add(call.id)
    if waiting:
        raise BadRequest(
            f"Tool calls without a response: {', '.join(sorted(waiting))[:200]}.", f"messages[{len(messages) - 1}]"
        )


def read_tools(body: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """The tools a model may call, of distinct names."""
    tools = fields.array(body, "tools", longest=MOST_TOOLS)
    specs: dict[str, ToolSpec] = {}
    for place, item in enumerate(tools or ()):
        spec = _tool(item, f"tools[{place}]")
        if spec.name in specs:
            raise BadRequest(f"Tool names must differ: {spec.name!r} occurs twice.", f"tools[{place}].function.name")
        specs[spec.name] = spec
    return tuple(specs.values())


def _tool(item: Any, at: str) -> ToolSpec:
    if type(item) is not dict:
        raise fields.wrong_type(at, "an object", item)
    _function_type(item, at)
    function = fields.mapping(item, "function", at=at)
    if function is None:
        raise fields.missing(f"{at}.function")
    at = f"{at}.function"
    name = _needed(function, "name", at, empty=True)
    if not TOOL_NAME.fullmatch(name):
        raise BadRequest(f"Invalid '{at}.name': 1 to 64 of A-Z, a-z, 0-9, '_' and '-' are allowed.", f"{at}.name")
    parameters = fields.mapping(function, "parameters", at=at) or {}
    if parameters and parameters.get("type", "object") != "object":
        raise BadRequest(f"Invalid '{at}.parameters': the schema must be of type 'object'.", f"{at}.parameters")
    return ToolSpec(
        name=name,
        description=fields.string(function, "description", at=at) or "",
        parameters=parameters,
        strict=fields.boolean(function, "strict", at=at) or False,
    )
