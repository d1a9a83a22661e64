"""Events to OpenAI's answers: one `chat.completion`, or `chat.completion.chunk`s as server-sent events.

Both writers see the same events, so a stream's deltas add up to the whole answer. Reasoning goes out under both names
in use, `reasoning_content` and `reasoning`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tiergate.tiers import Called, Event, Finish, Start, Text, Think, TokenLogprob, Usage

from .call import Call
from .sse import DONE

LOWEST_LOGPROB: Final = -9999.0
"""What the API reports for a probability of nought; JSON has no infinities."""


def usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def logprobs_json(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {
        "content": [
            {
                "token": one.token,
                "logprob": max(one.logprob, LOWEST_LOGPROB),
                "bytes": list(one.data),
                "top_logprobs": [
                    {"token": token, "logprob": max(logprob, LOWEST_LOGPROB), "bytes": list(data)}
                    for token, data, logprob in one.top
                ],
            }
            for one in tokens
        ],
        "refusal": None,
    }


def call_json(called: Called) -> dict[str, Any]:
    call = called.call
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


@dataclass(slots=True)
class _Choice:
    """One choice of a whole answer as it grows."""

    model: str = ""
    thought: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)
    finish: str | None = None


class WholeWriter:
    """Keeps everything and writes one JSON body at the end."""

    def __init__(self, call: Call, *, id: str, created: int) -> None:
        self._call = call
        self._id = id
        self._created = created
        self._choices = [_Choice() for _ in range(call.choices)]

    def write(self, batch: Sequence[tuple[int, Event]]) -> bytes:
        for index, happened in batch:
            choice = self._choices[index]
            match happened:
                case Text():
                    choice.text.append(happened.text)
                    choice.logprobs.extend(happened.logprobs)
                case Think():
                    choice.thought.append(happened.text)
                case Called():
                    if self._call.parallel_calls or not choice.calls:
                        choice.calls.append(happened)
                case Start():
                    choice.model = happened.model
                case Finish():
                    choice.finish = happened.reason
        return b""

    def end(self, usage: Usage) -> bytes:
        return orjson.dumps(
            {
                "id": self._id,
                "object": "chat.completion",
                "created": self._created,
                "model": self._choices[0].model,
                "choices": [self._choice(index, choice) for index, choice in enumerate(self._choices)],
                "usage": usage_json(usage),
            }
        )

    def _choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        text, thought = "".join(choice.text), "".join(choice.thought)
        message: dict[str, Any] = {
            "role": "assistant",
            # Nothing but calls or thoughts: clients tell that from an empty answer by the null.
            "content": text if text or not (thought or choice.calls) else None,
            "refusal": None,
        }
        if thought and self._call.show_reasoning:
            message["reasoning_content"] = message["reasoning"] = thought
        if choice.calls:
            message["tool_calls"] = [call_json(called) for called in choice.calls]
        wanted = self._call.request.sampling.logprobs is not None
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs_json(choice.logprobs) if wanted else None,
            "finish_reason": choice.finish,
        }


@dataclass(slots=True)
class _Stream:
    """One choice of a stream: its envelope as bytes, made once a model, and how many calls went out."""

    head: bytes = b""
    calls: int = 0


class ChunkWriter:
    """Writes every event as one server-sent event; the bytes around a delta are prepared once."""

    def __init__(self, call: Call, *, id: str, created: int) -> None:
        self._call = call
        envelope = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":'
        self._open = envelope % (orjson.dumps(id), created)
        self._streams = [_Stream() for _ in range(call.choices)]
        self._model = b'""'
        usage = b',"usage":null}\n\n' if call.usage_chunk else b"}\n\n"
        self._tail = b',"logprobs":null,"finish_reason":null}]' + usage
        self._usage = usage
        self._logprobs = call.request.sampling.logprobs is not None

    def write(self, batch: Sequence[tuple[int, Event]]) -> bytes:
        out: list[bytes] = []
        tail = self._tail
        for index, happened in batch:
            stream = self._streams[index]
            kind = type(happened)
            if kind is Text:
                text: Any = happened
                if self._logprobs:
                    out.append(self._with_logprobs(stream, text))
                else:
                    out += (stream.head, b'{"content":', orjson.dumps(text.text), b"}", tail)
            elif kind is Think:
                if self._call.show_reasoning:
                    thought = orjson.dumps(happened.text)  # type: ignore[union-attr]
                    out += (stream.head, b'{"reasoning_content":', thought, b',"reasoning":', thought, b"}", tail)
            else:
                out.append(self._seldom(index, stream, happened))
        return b"".join(out)

    def end(self, usage: Usage) -> bytes:
        if not self._call.usage_chunk:
            return DONE
        counts = orjson.dumps(usage_json(usage))
        return b"".join((self._open, self._model, b',"choices":[],"usage":', counts, b"}\n\n", DONE))

    def _seldom(self, index: int, stream: _Stream, happened: Event) -> bytes:
        match happened:
            case Start():
                first = not stream.head
                self._model = orjson.dumps(happened.model)
                stream.head = b'%b%b,"choices":[{"index":%d,"delta":' % (self._open, self._model, index)
                opening = b'{"role":"assistant","content":"","refusal":null}'
                return stream.head + opening + self._tail if first else b""
            case Called():
                if stream.calls and not self._call.parallel_calls:
                    return b""
                return self._call_chunks(stream, happened)
            case Finish():
                reason = orjson.dumps(happened.reason)
                return b'%b{},"logprobs":null,"finish_reason":%b}]%b' % (stream.head, reason, self._usage)
            case _:
                return b""

    def _call_chunks(self, stream: _Stream, called: Called) -> bytes:
        """Two deltas: what the call is, then its arguments, as clients expect to glue them."""
        opening = call_json(called)
        arguments = opening["function"]["arguments"]
        opening["function"]["arguments"] = ""
        place = {"index": stream.calls}
        stream.calls += 1
        deltas: list[dict[str, Any]] = [place | opening]
        if arguments:
            deltas.append(place | {"function": {"arguments": arguments}})
        return b"".join(stream.head + orjson.dumps({"tool_calls": [delta]}) + self._tail for delta in deltas)

    def _with_logprobs(self, stream: _Stream, text: Text) -> bytes:
        logprobs = orjson.dumps(logprobs_json(text.logprobs))
        return b'%b{"content":%b},"logprobs":%b,"finish_reason":null}]%b' % (
            stream.head, orjson.dumps(text.text), logprobs, self._usage,
        )  # fmt: skip
