"""Answers in OpenAI's dialect: streams add up to whole answers, whatever happens in which order."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from tiergate.gateway.call import Call
from tiergate.gateway.wire_openai_answer import ChunkWriter, WholeWriter
from tiergate.tiers import (
    Called,
    ChatRequest,
    Event,
    Finish,
    Message,
    Sampling,
    Start,
    Text,
    Think,
    TokenLogprob,
    ToolCall,
    Usage,
)

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
USAGE = Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=7, reasoning_tokens=3)


def _text(text: str) -> Text:
    return Text(text, (TokenLogprob(text, text.encode(), -0.5, ((text, text.encode(), -0.5),)),))


@st.composite
def choices(draw: st.DrawFn) -> list[Event]:
    """All events of one choice."""
    thoughts = [Think(text) for text in draw(st.lists(TEXTS, max_size=3))]
    texts = [_text(text) for text in draw(st.lists(TEXTS, max_size=4))]
    calls = [
        Called(place, ToolCall(id=f"call_{place}", name="look", arguments=arguments))
        for place, arguments in enumerate(draw(st.lists(st.sampled_from(["", "{}", '{"a":"\\u00e9\\n"}']), max_size=3)))
    ]
    starts = [Start("fast", "small"), Start("deep", "big")][: draw(st.integers(1, 2))]
    reason = "tool_calls" if calls else draw(st.sampled_from(["stop", "length"]))
    return [*starts, *thoughts, *texts, *calls, Finish(reason=reason, usage=USAGE)]  # type: ignore[list-item]


@st.composite
def answers(draw: st.DrawFn) -> tuple[Call, list[list[tuple[int, Event]]]]:
    """A call and its events in batches, choices mixed but each in order."""
    lists = draw(st.lists(choices(), min_size=1, max_size=3))
    order = draw(st.permutations([index for index, events in enumerate(lists) for _ in events]))
    queues = [iter(events) for events in lists]
    mixed = [(index, next(queues[index])) for index in order]
    cuts = sorted(draw(st.lists(st.integers(0, len(mixed)), max_size=4)))
    batches = [mixed[low:high] for low, high in zip([0, *cuts], [*cuts, len(mixed)], strict=True)]
    call = Call(
        request=ChatRequest(
            model="m",
            messages=(Message(role="user", content="x"),),
            sampling=Sampling(logprobs=1 if draw(st.booleans()) else None),
        ),
        choices=len(lists),
        stream=True,
        usage_chunk=draw(st.booleans()),
        show_reasoning=draw(st.booleans()),
        parallel_calls=draw(st.booleans()),
    )
    return call, batches


def unframe(stream: bytes) -> list[Any]:
    """The payloads of a stream of server-sent events, whose framing is checked."""
    *events, rest = stream.split(b"\n\n")
    assert rest == b""
    for event in events:
        assert event.startswith(b"data: ")
        assert b"\n" not in event
        assert b"\r" not in event
    assert events[-1] == b"data: [DONE]"
    return [orjson.loads(event[6:]) for event in events[:-1]]


def add_up(chunks: list[Any], count: int) -> list[dict[str, Any]]:
    """The choices that the deltas amount to."""
    whole: list[dict[str, Any]] = [
        {"content": "", "thought": "", "calls": [], "finish": None, "logprobs": []} for _ in range(count)
    ]
    for chunk in chunks:
        for choice in chunk["choices"]:
            one, delta = whole[choice["index"]], choice["delta"]
            assert one["finish"] is None, "nothing follows a choice's finish"
            assert not (delta.get("content") and delta.get("reasoning")), "no delta holds both"
            assert delta.get("reasoning") == delta.get("reasoning_content")
            one["content"] += delta.get("content") or ""
            one["thought"] += delta.get("reasoning") or ""
            one["finish"] = choice["finish_reason"]
            if choice["logprobs"]:
                one["logprobs"] += choice["logprobs"]["content"]
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    assert call["index"] == len(one["calls"])
                    one["calls"].append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
                else:
                    one["calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return whole


@given(answers())
def test_a_stream_adds_up_to_the_whole_answer(drawn: tuple[Call, list[list[tuple[int, Event]]]]) -> None:
    call, batches = drawn
    streaming, collecting = ChunkWriter(call, id="chatcmpl-1", created=9), WholeWriter(call, id="chatcmpl-1", created=9)
    stream = b""
    for batch in batches:
        stream += streaming.write(batch)
        assert collecting.write(batch) == b""
    chunks = unframe(stream + streaming.end(USAGE))
    whole = orjson.loads(collecting.end(USAGE))

    for added, choice in zip(add_up(chunks, call.choices), whole["choices"], strict=True):
        message = choice["message"]
        assert added["content"] == (message["content"] or "")
        assert added["thought"] == message.get("reasoning_content", "") == message.get("reasoning", "")
        assert added["calls"] == message.get("tool_calls", [])
        assert added["finish"] == choice["finish_reason"]
        assert added["logprobs"] == (choice["logprobs"] or {"content": []})["content"]
        if choice["logprobs"]:
            spelled = bytes(byte for token in choice["logprobs"]["content"] for byte in token["bytes"])
            assert spelled == (message["content"] or "").encode()

    assert {(chunk["id"], chunk["created"], chunk["object"]) for chunk in chunks} == {
        ("chatcmpl-1", 9, "chat.completion.chunk")
    }
    usages = [chunk for chunk in chunks if chunk.get("usage")]
    if call.usage_chunk:
        assert usages == [chunks[-1]]
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == whole["usage"]
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    else:
        assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)
    firsts = {chunk["choices"][0]["index"]: chunk for chunk in reversed(chunks) if chunk["choices"]}
    for first in firsts.values():
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}


def written(*events: Event, **options: Any) -> dict[str, Any]:
    request = ChatRequest(model="m", messages=(Message(role="user", content="x"),))
    writer = WholeWriter(Call(request=request, **options), id="chatcmpl-1", created=9)
    writer.write([(0, event) for event in (Start("fast", "small"), *events)])
    whole: dict[str, Any] = orjson.loads(writer.end(USAGE))
    return whole


def test_usage() -> None:
    assert written(Text("a"))["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }


def test_content_is_null_only_when_there_is_something_else() -> None:
    assert written(Think("hm"))["choices"][0]["message"]["content"] is None
    assert written(Called(0, ToolCall(id="1", name="f", arguments="{}")))["choices"][0]["message"]["content"] is None
    assert written()["choices"][0]["message"]["content"] == ""


def test_hidden_reasoning_leaves_no_trace_but_the_usage() -> None:
    whole = written(Think("hm"), Text("a"), show_reasoning=False)
    assert set(whole["choices"][0]["message"]) == {"role", "content", "refusal"}
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3


def test_the_model_is_the_one_that_served() -> None:
    assert written(Start("deep", "big"), Text("a"))["model"] == "big"
