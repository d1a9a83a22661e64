"""OpenAI's chat completion requests to ours. Pure; raises `BadRequest` naming the field.

Beyond the official fields this dialect takes, all optional:

| field | meaning |
| --- | --- |
| `top_k`, `min_p`, `repetition_penalty` | further sampling, as in vLLM |
| `min_tokens`, `ignore_eos`, `stop_token_ids` | likewise |
| `thinking`, `thinking_budget`, `thinking_mode` | see `thinking.py` |
| `include_reasoning` | false leaves thinking out of the answer |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from tiergate.budget import Tenant
from tiergate.tiers import ChatRequest, Sampling

from . import fields
from .call import Call
from .errors import BadRequest
from .lookalikes import FIELDS as THINKING_FIELDS
from .lookalikes import Shape, refuse_lookalikes
from .thinking import read_thinking
from .wire_openai_messages import MESSAGE, TOOL, read_messages, read_tools

Number = TypeVar("Number", int, float)

PLAIN = Sampling()
INT64 = 1 << 63
MOST_TOKENS = (1 << 31) - 1
MOST_BIASES = 4096
MOST_STOPS = 4
LONGEST_STOP = 1024
MOST_REPETITION = 1e6
"""Of `repetition_penalty`, which may be as small as the inverse."""
TOKEN_ID = re.compile("0|[1-9][0-9]{0,8}")

SAMPLING_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "seed", "min_tokens", "ignore_eos", "stop_token_ids", "logprobs", "top_logprobs",
)  # fmt: skip
WITHOUT_EFFECT = (
    "store", "metadata", "user", "safety_identifier", "service_tier", "prompt_cache_key", "prompt_cache_retention",
    "verbosity", "prediction",
)  # fmt: skip
REFUSED = {
    "functions": "Use 'tools'.",
    "function_call": "Use 'tool_choice'.",
    "audio": "Models here answer in text.",
    "web_search_options": "There is no web search here.",
}
KNOWN = frozenset(
    (
        "model", "messages", "n", "stream", "stream_options", "stop", "max_tokens", "max_completion_tokens", "tools",
        "tool_choice", "parallel_tool_calls", "response_format", "modalities", "include_reasoning",
        *SAMPLING_FIELDS, *WITHOUT_EFFECT, *REFUSED, *THINKING_FIELDS,
    )
)  # fmt: skip
SHAPE = Shape(
    known=KNOWN,
    inside={
        "messages": MESSAGE,
        "tools": TOOL,
        "stream_options": Shape(known=frozenset(("include_usage", "include_obfuscation"))),
        "response_format": Shape(known=frozenset(("type", "json_schema"))),
    },
)
"""Where a budget may have ended up by mistake. What a field or a schema holds as data is nobody's business."""


def parse_chat(body: Mapping[str, Any], tenant: Tenant, *, most_choices: int) -> Call:
    """A body of POST /v1/chat/completions, already JSON. Unknown fields are ignored unless they look like a budget."""
    model = fields.string(body, "model")
    if not model:
        raise fields.missing("model")
    if not body.keys().isdisjoint(REFUSED):
        for name, why in REFUSED.items():
            if body.get(name) is not None:
                raise fields.unsupported(name, why)
    refuse_lookalikes(body, SHAPE)
    stream = fields.boolean(body, "stream") or False
    wish = read_thinking(body)
    tools = read_tools(body)
    _refuse_formats(body)
    cap, sampling = _cap(body), _sampling(body)
    if cap is not None and sampling.min_tokens > cap:
        raise BadRequest(f"'min_tokens' is {sampling.min_tokens}, but at most {cap} tokens are allowed.", "min_tokens")
    request = ChatRequest(
        model=model,
        messages=read_messages(body),
        sampling=sampling,
        max_tokens=cap,
        stop=_stop(body),
        effort=wish.effort,
        thinking=wish.tokens,
        thinking_soft=wish.soft,
        tools=tools,
        tool_choice=_tool_choice(body, has_tools=bool(tools)),
        salt=tenant.salt or tenant.id,
        priority=tenant.priority,
        whole=not stream,
    )
    shown = fields.boolean(body, "include_reasoning")
    parallel = fields.boolean(body, "parallel_tool_calls")
    return Call(
        request=request,
        choices=fields.integer(body, "n", low=1, high=most_choices) or 1,
        stream=stream,
        usage_chunk=_usage_chunk(body, stream),
        show_reasoning=shown is not False,
        parallel_calls=parallel is not False,
    )


def _sampling(body: Mapping[str, Any]) -> Sampling:
    if body.keys().isdisjoint(SAMPLING_FIELDS):
        return PLAIN
    return Sampling(
        temperature=fields.number(body, "temperature", low=0, high=2),
        top_p=fields.number(body, "top_p", above=0, high=1),
        top_k=_or(fields.integer(body, "top_k", low=0, high=MOST_TOKENS), 0),
        min_p=_or(fields.number(body, "min_p", low=0, high=1), 0.0),
        presence_penalty=_or(fields.number(body, "presence_penalty", low=-2, high=2), 0.0),
        frequency_penalty=_or(fields.number(body, "frequency_penalty", low=-2, high=2), 0.0),
        repetition_penalty=_or(
            fields.number(body, "repetition_penalty", low=1 / MOST_REPETITION, high=MOST_REPETITION), 1.0
        ),
        logit_bias=_biases(body),
        seed=fields.integer(body, "seed", low=-INT64, high=INT64 - 1),
        min_tokens=_or(fields.integer(body, "min_tokens", low=0, high=MOST_TOKENS), 0),
        ignore_eos=fields.boolean(body, "ignore_eos") or False,
        stop_token_ids=_stop_ids(body),
        logprobs=_logprobs(body),
    )


def _or(value: Number | None, default: Number) -> Number:
    return default if value is None else value


def _biases(body: Mapping[str, Any]) -> dict[int, float]:
    biases = fields.mapping(body, "logit_bias") or {}
    if len(biases) > MOST_BIASES:
        raise BadRequest(f"Invalid 'logit_bias': at most {MOST_BIASES} tokens.", "logit_bias")
    read: dict[int, float] = {}
    for key in biases:
        if not TOKEN_ID.fullmatch(key):
            raise BadRequest(f"Invalid key in 'logit_bias': {key[:40]!r} is no token id.", "logit_bias")
        bias = fields.number(biases, key, low=-100, high=100, at="logit_bias")
        if bias is None:
            raise fields.wrong_type(f"logit_bias.{key}", "a decimal", None)
        read[int(key)] = bias
    return read


def _stop_ids(body: Mapping[str, Any]) -> tuple[int, ...]:
    ids = fields.array(body, "stop_token_ids", longest=64) or []
    for place, one in enumerate(ids):
        if type(one) is not int:
            raise fields.wrong_type(f"stop_token_ids[{place}]", "an integer", one)
        if not 0 <= one < 10**9:
            raise BadRequest(f"Invalid 'stop_token_ids': {one} is no token id.", f"stop_token_ids[{place}]")
    return tuple(ids)


def _logprobs(body: Mapping[str, Any]) -> int | None:
    wanted = fields.boolean(body, "logprobs") or False
    rivals = fields.integer(body, "top_logprobs", low=0, high=20)
    if rivals is not None and not wanted:
        raise BadRequest("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
    return (rivals or 0) if wanted else None


def _cap(body: Mapping[str, Any]) -> int | None:
    """The smaller of the two names for the same limit."""
    caps = [fields.integer(body, name, low=1, high=MOST_TOKENS) for name in ("max_tokens", "max_completion_tokens")]
    return min((cap for cap in caps if cap is not None), default=None)


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    if stop is None:
        return ()
    if type(stop) is not str and type(stop) is not list:
        raise fields.wrong_type("stop", "a string or an array of strings", stop)
    strings = [stop] if isinstance(stop, str) else fields.array(body, "stop", longest=MOST_STOPS) or []
    for place, one in enumerate(strings):
        where = "stop" if one is stop else f"stop[{place}]"
        if type(one) is not str:
            raise fields.wrong_type(where, "a string", one)
        if not 0 < len(one) <= LONGEST_STOP:
            raise BadRequest(f"Invalid '{where}': 1 to {LONGEST_STOP} characters are allowed.", where)
    return tuple(strings)


def _usage_chunk(body: Mapping[str, Any], stream: bool) -> bool:
    options = fields.mapping(body, "stream_options")
    if options is None:
        return False
    if not stream:
        raise BadRequest("'stream_options' is only allowed when 'stream' is true.", "stream_options")
    fields.boolean(options, "include_obfuscation", at="stream_options")
    return fields.boolean(options, "include_usage", at="stream_options") or False


def _tool_choice(body: Mapping[str, Any], *, has_tools: bool) -> str:
    choice = body.get("tool_choice")
    if choice is None:
        return "auto"
    if type(choice) is not str and type(choice) is not dict:
        raise fields.wrong_type("tool_choice", "a string or an object", choice)
    if choice in ("auto", "none"):
        return choice
    if isinstance(choice, str) and choice != "required":
        raise fields.bad_choice("tool_choice", ("none", "auto", "required"), choice)
    if not has_tools:
        raise BadRequest("'tool_choice' is only allowed when 'tools' are given.", "tool_choice")
    raise BadRequest(
        "Forced tool calls are not supported yet; 'auto' and 'none' are.", "tool_choice", "unsupported_value"
    )


def _refuse_formats(body: Mapping[str, Any]) -> None:
    """Answers are plain text for now; saying so beats handing out text that was to be JSON."""
    form = fields.mapping(body, "response_format")
    if form is not None:
        kind = fields.choice(form, "type", ("text", "json_object", "json_schema"), at="response_format")
        if kind is None:
            raise fields.missing("response_format.type")
        if kind != "text":
            raise BadRequest(
                f"'response_format' of type '{kind}' is not supported yet.", "response_format", "unsupported_value"
            )
    modalities = fields.array(body, "modalities", longest=8)
    if modalities is not None and modalities != ["text"]:
        raise BadRequest("Models here answer in text only.", "modalities", "unsupported_value")
