"""Requests in OpenAI's dialect, read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiergate.budget import Tenant
from tiergate.engine.messages import Generate, LaneInfo, SamplingParams
from tiergate.engine.validate import LARGEST, find_fault
from tiergate.gateway.call import choice_seed
from tiergate.gateway.errors import BadRequest
from tiergate.gateway.wire_openai import KNOWN, parse_chat
from tiergate.tiers import ChatRequest, Message, Sampling, ToolCall

from .conftest import ask

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ENABLED = {"type": "enabled"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


TENANT = Tenant(id="t", priority=3)


def read(**fields: Any) -> ChatRequest:
    return parse_chat(ask(**fields), tenant=TENANT, most_choices=16).request


def refused(body: dict[str, Any]) -> BadRequest:
    with pytest.raises(BadRequest) as failure:
        parse_chat(body, tenant=TENANT, most_choices=16)
    return failure.value


def test_a_minimal_request() -> None:
    call = parse_chat(ask("Hi"), tenant=TENANT, most_choices=16)
    messages = (Message(role="user", content="Hi"),)
    assert call.request == ChatRequest(model="fast", messages=messages, salt="t", priority=3, whole=True)
    assert (call.choices, call.stream, call.usage_chunk, call.show_reasoning, call.parallel_calls) == (
        1, False, False, True, True,
    )  # fmt: skip


def test_every_field() -> None:
    call = parse_chat(
        ask(
            temperature=0,
            top_p=0.5,
            top_k=40,
            min_p=0.1,
            presence_penalty=-2,
            frequency_penalty=2,
            repetition_penalty=1.1,
            logit_bias={"0": -100, "42": 3.5},
            seed=-1,
            min_tokens=2,
            ignore_eos=True,
            stop_token_ids=[7],
            logprobs=True,
            top_logprobs=5,
            max_tokens=10,
            max_completion_tokens=20,
            stop=["a", "b"],
            n=3,
            stream=True,
            stream_options={"include_usage": True, "include_obfuscation": False},
            reasoning_effort="xhigh",
            thinking_budget=7,
            thinking_mode="soft",
            include_reasoning=False,
            tools=[TOOL],
            tool_choice="none",
            parallel_tool_calls=False,
            response_format={"type": "text"},
            modalities=["text"],
            store=True,
            metadata={"budget": "mine"},
            user="u",
            service_tier="auto",
            verbosity="low",
            something_new={"deeply": "unknown"},
        ),
        tenant=TENANT,
        most_choices=16,
    )
    request = call.request
    assert request.sampling == Sampling(
        temperature=0.0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        repetition_penalty=1.1,
        logit_bias={0: -100.0, 42: 3.5},
        seed=-1,
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=(7,),
        logprobs=5,
    )
    assert (request.max_tokens, request.stop, request.effort, request.thinking) == (10, ("a", "b"), "xhigh", 7)
    assert (request.thinking_soft, request.tool_choice, [tool.name for tool in request.tools]) == (
        True,
        "none",
        ["look"],
    )
    assert (call.choices, call.stream, call.usage_chunk, call.show_reasoning, call.parallel_calls) == (
        3, True, True, False, False,
    )  # fmt: skip


def test_what_is_left_to_the_tier() -> None:
    def said(**fields: Any) -> tuple[float | None, float | None]:
        sampling = parse_chat(ask(**fields), tenant=TENANT, most_choices=16).request.sampling
        return sampling.temperature, sampling.top_p

    assert said() == said(temperature=None) == (None, None)
    assert said(temperature=1) == (1.0, None)
    assert said(temperature=1, top_p=1) == (1.0, 1.0)


def test_null_is_absent() -> None:
    optional = KNOWN - {"model", "messages"}
    assert parse_chat(ask(**dict.fromkeys(optional)), tenant=TENANT, most_choices=16) == parse_chat(
        ask(), tenant=TENANT, most_choices=16
    )


NUMERIC: dict[str, set[Any]] = {
    # Field to the values of the list below that it takes.
    "temperature": {0},
    "top_p": set(),
    "top_k": {0},
    "min_p": {0},
    "presence_penalty": {-1, 0},
    "frequency_penalty": {-1, 0},
    "repetition_penalty": set(),
    "seed": {-1, 0},
    "min_tokens": {0},
    "top_logprobs": {0},
    "max_tokens": set(),
    "max_completion_tokens": set(),
    "n": set(),
    "thinking_budget": {0},
}
ODD: list[Any] = [
    -1,
    0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "1",
    [],
    {},
    True,
    False,
    2**70,
    -(2**70),
    [1],
    {"a": 1},
]


@pytest.mark.parametrize("field", NUMERIC)
@pytest.mark.parametrize("value", ODD, ids=repr)
def test_odd_values_of_numeric_fields(field: str, value: Any) -> None:
    extra = {"logprobs": True} if field == "top_logprobs" else {}
    body = ask(**{field: value}, **extra)
    if type(value) is int and value in NUMERIC[field]:
        parse_chat(body, tenant=TENANT, most_choices=16)
    else:
        assert refused(body).param == field


@pytest.mark.parametrize("value", [*ODD, None], ids=repr)
def test_odd_values_of_nested_numbers(value: Any) -> None:
    if value not in (-1, 0) or isinstance(value, bool):
        assert refused(ask(logit_bias={"5": value})).param == "logit_bias.5"
    if value is not None:
        assert refused(ask(thinking={"type": "enabled", "budget_tokens": value})).param == "thinking.budget_tokens"
    if value != 0 or isinstance(value, bool):
        assert (refused(ask(stop_token_ids=[value])).param or "").startswith("stop_token_ids")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": ""}, "model", "missing_required_parameter"),
        ({"model": 3}, "model", "invalid_type"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "array_below_min_length"),
        ({"messages": "Hi"}, "messages", "invalid_type"),
        ({"messages": [3]}, "messages[0]", "invalid_type"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]", "invalid_type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
            "messages[0].content[0].type",
            "unsupported_value",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "missing_required_parameter",
        ),
        ({"messages": [{"role": "user", "content": "x"}] * 2049}, "messages", "array_above_max_length"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
        ({"n": 17}, "n", "integer_above_max_value"),
        ({"n": 0}, "n", "integer_below_min_value"),
        ({"temperature": 2.1}, "temperature", "decimal_above_max_value"),
        ({"top_p": 1.01}, "top_p", "decimal_above_max_value"),
        ({"presence_penalty": -2.1}, "presence_penalty", "decimal_below_min_value"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens", "invalid_value"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"stop": ["a", ""]}, "stop[1]", "invalid_value"),
        ({"stop": ["a", 5]}, "stop[1]", "invalid_type"),
        ({"stop": 5}, "stop", "invalid_type"),
        ({"stop": ["a"] * 5}, "stop", "array_above_max_length"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"logprobs": False, "top_logprobs": 0}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
        ({"logprobs": 3}, "logprobs", "invalid_type"),
        ({"logit_bias": {"hello": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"\u0663": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "decimal_above_max_value"),
        ({"logit_bias": [5]}, "logit_bias", "invalid_type"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "invalid_value"),
        ({"thinking": {}}, "thinking.type", "missing_required_parameter"),
        ({"thinking": {"type": "on"}}, "thinking.type", "invalid_value"),
        ({"thinking": {"type": "enabled", "budget": 5}}, "thinking.budget", "unknown_parameter"),
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, "thinking.budget_tokens", "invalid_value"),
        ({"thinking": ENABLED | {"budget_tokens": 5}, "thinking_budget": 6}, "thinking_budget", "invalid_value"),
        ({"thinking_mode": "firm"}, "thinking_mode", "invalid_value"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name", "invalid_value"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "invalid_value"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters",
            "invalid_value",
        ),
        ({"tools": [TOOL] * 129}, "tools", "array_above_max_length"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": "sometimes"}, "tool_choice", "invalid_value"),
        ({"tool_choice": "required", "tools": [TOOL]}, "tool_choice", "unsupported_value"),
        ({"tool_choice": {"type": "function"}, "tools": [TOOL]}, "tool_choice", "unsupported_value"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_value"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format", "unsupported_value"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {}}, "response_format.type", "missing_required_parameter"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_value"),
        ({"functions": []}, "functions", "unsupported_parameter"),
        ({"audio": {}}, "audio", "unsupported_parameter"),
    ],
)  # fmt: skip
def test_bad_fields(fields: dict[str, Any], param: str, code: str) -> None:
    body = ask() | fields
    failure = refused(body)
    assert (failure.param, failure.code) == (param, code)


def test_the_effort_levels_are_listed() -> None:
    text = str(refused(ask(reasoning_effort="hard")))
    for level in ("none", "minimal", "low", "medium", "high", "xhigh", "max"):
        assert f"'{level}'" in text
        assert read(reasoning_effort=level).effort == level


def test_the_smaller_cap_wins() -> None:
    assert read(max_tokens=5, max_completion_tokens=9).max_tokens == 5
    assert read(max_completion_tokens=9).max_tokens == 9


def test_messages() -> None:
    request = read(
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]},
            {"role": "user", "content": "Hi", "name": "Ann"},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []},
            {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
            {"role": "assistant", "content": "Fine.", "reasoning_content": "Hm."},
            {"role": "assistant", "reasoning": "Cut here"},
            {"role": "assistant", "content": "x", "thinking_blocks": [{"type": "thinking", "thinking": "T"}, 3, {}]},
            {"role": "assistant", "content": "x", "reasoning_content": {"odd": 1}, "thinking_blocks": "odd"},
        ]
    )
    assert request.messages == (
        Message(role="system", content="Be kind."),
        Message(role="user", content="Hi", name="Ann"),
        Message(role="assistant", content="", tool_calls=(ToolCall(id="c1", name="look", arguments="{}"),)),
        Message(role="tool", content="sunny", tool_call_id="c1"),
        Message(role="assistant", content="Fine.", reasoning="Hm."),
        Message(role="assistant", content="", reasoning="Cut here"),
        Message(role="assistant", content="x", reasoning="T"),
        Message(role="assistant", content="x"),
    )


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "tool", "content": "x", "tool_call_id": "c1"}], "messages[0].tool_call_id"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "assistant", "tool_calls": [CALL]}], "messages[0]"),
        ([{"role": "assistant", "tool_calls": [CALL]}, {"role": "user", "content": "x"}], "messages[1].role"),
        ([{"role": "assistant", "tool_calls": [CALL, CALL]}], "messages[0].tool_calls[1].id"),
        ([{"role": "assistant", "tool_calls": [{**CALL, "id": ""}]}], "messages[0].tool_calls[0].id"),
        ([{"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}], "messages[0].tool_calls[0].type"),
        (
            [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "look", "arguments": {}}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "x", "tool_call_id": "c2"}],
            "messages[1].tool_call_id",
        ),
        ([{"role": "assistant", "content": "x", "function_call": {}}], "messages[0].function_call"),
    ],
)
def test_bad_conversations(messages: list[dict[str, Any]], param: str) -> None:
    assert refused(ask(messages=messages)).param == param


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("thinkng_budget", "thinking_budget"),
        ("thinking_token_budget", "thinking_budget"),
        ("budget_tokens", "thinking_budget"),
        ("max_thinking_tokens", "thinking_budget"),
        ("reasoning", "reasoning_effort"),
        ("reasoningEffort", "reasoning_effort"),
        ("effort", "reasoning_effort"),
        ("enable_thinking", "thinking"),
        ("thinkng", "thinking"),
        ("separate_reasoning", "include_reasoning"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_lookalikes_of_budgets_are_refused(name: str, meant: str, nested: bool) -> None:
    fields: dict[str, Any] = {"extra_body": {name: 5}} if nested else {name: 5}
    failure = refused(ask(**fields))
    assert failure.param == (f"extra_body.{name}" if nested else name)
    assert f"Did you mean '{meant}'?" in str(failure)
    assert failure.code == "unknown_parameter"


def test_a_budget_one_level_too_deep_is_refused() -> None:
    failure = refused(ask(generation={"thinking_budget": 5}))
    assert failure.param == "generation.thinking_budget"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("thinking_budget", "thinking_budget"),
        ("thinking", "thinking"),
        ("reasoning_effort", "reasoning_effort"),
        ("thinking_mode", "thinking_mode"),
        ("budget_tokens", "thinking_budget"),
        ("thinkng_budget", "thinking_budget"),
        ("reasoningEffort", "reasoning_effort"),
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_budgets_in_the_wrong_place_are_refused(name: str, meant: str, role: str) -> None:
    user = {"role": "user", "content": "Hi"}
    function = {"name": "look", name: 5}
    for fields, at in (
        ({"stream": True, "stream_options": {"include_usage": True, name: 5}}, "stream_options"),
        ({"response_format": {"type": "text", name: 5}}, "response_format"),
        ({"messages": [user, {"role": role, "content": "Hi", name: 5}]}, "messages[1]"),
        ({"tools": [TOOL, TOOL | {name: 5}]}, "tools[1]"),
        ({"tools": [{"type": "function", "function": function}]}, "tools[0].function"),
    ):
        failure = refused(ask() | fields)
        assert (failure.param, failure.code) == (f"{at}.{name}", "unknown_parameter")
        assert f"Did you mean '{meant}'?" in str(failure)


def test_what_only_looks_like_a_budget_and_is_data_is_left_alone() -> None:
    schema = {"type": "object", "properties": {"thinking_budget": {"type": "integer"}}, "reasoning_effort": "x"}
    said = ("reasoning", "reasoning_content", "thinking_blocks", "reasoning_details", "reasoning_signature")
    request = read(
        tools=[{"type": "function", "function": {"name": "look", "parameters": schema}}],
        metadata={"thinking_budget": "5"},
        messages=[
            {"role": "user", "content": "Hi", "thinking_budget": None, "cache": 1},
            {"role": "assistant", "content": "x", **dict.fromkeys(said, "T")},
        ],
    )
    assert request.tools[0].parameters == schema
    assert request.thinking is request.effort is None
    for name in said:
        assert refused(ask(messages=[{"role": "user", "content": "Hi", name: "T"}])).param == f"messages[0].{name}"


def test_a_flood_of_fields_is_refused() -> None:
    assert refused(ask(**{f"x{place}": 1 for place in range(200)})).code == "too_many_fields"
    names = {f"x{place}": 1 for place in range(200)}
    more = {f"y{place}": 1 for place in range(200)}
    user = {"role": "user", "content": "Hi"}
    assert read(extra=names, messages=[user | names] * 100).messages[99].content == "Hi"
    assert refused(ask(extra=names, other=more)).code == "too_many_fields"
    assert refused(ask(messages=[user | names, user | more])).code == "too_many_fields"
    assert refused(ask(messages=[user] * 100_000)).code == "array_above_max_length"


@pytest.mark.parametrize(
    ("fields", "effort", "tokens"),
    [
        ({}, None, None),
        ({"thinking": {"type": "enabled"}}, "medium", None),
        ({"thinking": {"type": "adaptive"}, "reasoning_effort": "low"}, "low", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 9, "display": "omitted"}}, None, 9),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "high"}, "high", 0),
        ({"thinking_budget": 0}, None, 0),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}, "thinking_budget": 9}, None, 9),
    ],
)
def test_ways_to_ask_for_thinking(fields: dict[str, Any], effort: str | None, tokens: int | None) -> None:
    request = read(**fields)
    assert (request.effort, request.thinking) == (effort, tokens)


NAMES = st.text(max_size=8) | st.sampled_from(sorted(KNOWN))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(KNOWN)) | st.text(max_size=12), VALUES, max_size=8), st.booleans())
def test_no_body_does_anything_but_parse_or_be_refused(body: dict[str, Any], complete: bool) -> None:
    try:
        parsed = bool(parse_chat(ask() | body if complete else body, tenant=TENANT, most_choices=16))
    except BadRequest as error:
        parsed = bool(str(error) and error.code)
    assert parsed


ANY = st.floats() | st.integers(-(2**64), 2**64) | st.sampled_from((1e-320, 1e-9, 1e-7, 1e-6, 1e6, 1e6 + 1, 1e308))
LANE = LaneInfo(name="fast", model="m", context=1 << 40, vocab=10**9, eos=(0,), dtype="fp32", blocks=1, block_size=1)


@given(st.dictionaries(st.sampled_from(sorted(NUMERIC)), ANY, max_size=4), st.dictionaries(st.just("7"), ANY))
def test_what_is_taken_here_the_engine_takes_as_well(numbers: dict[str, Any], biases: dict[str, Any]) -> None:
    try:
        sampling = read(**{"logprobs": True} | numbers, logit_bias=biases).sampling
    except BadRequest as error:
        assert error.param in {*numbers, "logit_bias.7"}  # noqa: PT017
        return
    found = {name: getattr(sampling, name, None) for name in SamplingParams.__struct_fields__}
    fields = {name: value for name, value in found.items() if value is not None}
    command = Generate(id="1", lane="fast", token_ids=[1], sampling=SamplingParams(max_tokens=1, **fields))
    assert find_fault(command, LANE) is None


def test_the_bounds_of_a_repetition_penalty_are_the_engine_s() -> None:
    for value in (1 / LARGEST, LARGEST):
        assert read(repetition_penalty=value).sampling.repetition_penalty == value
    for value in (1e-9, 0.99 / LARGEST, 1.01 * LARGEST):
        assert refused(ask(repetition_penalty=value)).param == "repetition_penalty"


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 128))
def test_choices_have_distinct_seeds_within_an_int64(seed: int, choices: int) -> None:
    seeds = [choice_seed(seed, index) for index in range(choices)]
    assert seeds[0] == seed
    assert len(set(seeds)) == choices
    assert all(one is not None and -(2**63) <= one < 2**63 for one in seeds)
    assert choice_seed(None, choices) is None
