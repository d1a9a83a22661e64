"""The one shape that a request takes inside, whatever dialect it came in, and the events that answer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[Effort, ...] = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
FinishReason = Literal["stop", "length", "tool_calls", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call the model makes; `arguments` is the JSON text as it wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool the model may call; `parameters` is a JSON schema of type object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn. `content` is plain text: dialects join their text parts before they come here."""

    role: Role
    content: str
    reasoning: str = ""
    """Thinking of an earlier assistant turn, as the client sent it back."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """On a `tool` turn: the call it answers."""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn; ranges were checked by the dialect. See `tiergate.engine.SamplingParams`."""

    temperature: float | None = None
    """None leaves it to the tier, as it does for `top_p`."""
    top_p: float | None = None
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    """None: none; n: each answer token's log-probability with its n likeliest rivals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One conversation to be continued by one choice."""

    model: str
    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    """The client's cap on thinking and answer together."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer; they never apply inside thinking and are not part of the result."""
    effort: Effort | None = None
    thinking: int | None = None
    """Thinking tokens asked for outright; wins over `effort`; 0 is off."""
    thinking_soft: bool = False
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or a tool's name behind `name:`."""
    salt: str = ""
    priority: int = 0
    whole: bool = False
    """Nobody looks at the answer before its end, so behind its beginning events may come late and in large pieces."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the dialect that nobody inside reads."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token of the answer: its bytes (which may be a part of a character), log-probability and rivals."""

    token: str
    data: bytes
    logprob: float
    top: tuple[tuple[str, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens by the engine's own count; `completion_tokens` includes `reasoning_tokens`."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    forced_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            forced_tokens=self.forced_tokens + other.forced_tokens,
        )


@dataclass(frozen=True, slots=True)
class Start:
    """The first event: which tier answers. A cascade may send it again while nothing visible has left."""

    tier: str
    model: str


@dataclass(frozen=True, slots=True)
class Think:
    """A piece of thinking, whole characters, without markers."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer, whole characters; the logprobs' bytes joined over all pieces are the answer's bytes."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Called:
    """A whole tool call; `index` counts from 0 within the answer."""

    index: int
    call: ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The last event of a stream that ended in order."""

    reason: FinishReason
    usage: Usage
    stop: str | None = None
    """The stop string that matched."""


Event = Start | Think | Text | Called | Finish
