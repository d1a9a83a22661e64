"""A tier whose answers are written down beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tiergate.budget import Limits
from tiergate.tiers import (
    BadField,
    Called,
    ChatRequest,
    ContextTooLong,
    Event,
    Finish,
    FinishReason,
    Prompt,
    Start,
    Text,
    Think,
    TierHealth,
    TierSpec,
    TierUnavailable,
    Usage,
)
from tiergate.tiers.tier import Sink

Step = Event | float | asyncio.Event | Exception
"""What a script does next: give an event, sleep some seconds, wait for something, or fail."""

Script = Callable[[ChatRequest, Prompt, Limits], Iterable[Step]]


def say(text: str, *, think: str = "", reason: FinishReason = "stop", delay: float | None = None) -> Script:
    """A script that thinks and answers word by word; every word is a token."""

    def script(request: ChatRequest, prompt: Prompt, limits: Limits) -> Iterable[Step]:
        for word in _words(think):
            yield Think(word)
        for word in _words(text):
            if delay is not None:
                yield delay
            yield Text(word)
        yield Finish(reason=reason, usage=Usage())

    return script


def _words(text: str) -> list[str]:
    return [word if place == 0 else f" {word}" for place, word in enumerate(text.split(" "))] if text else []


class FakeAnswer:
    """Plays a script, counting every event but the first and last as a token."""

    def __init__(self, tier: FakeTier, request: ChatRequest, prompt: Prompt, limits: Limits) -> None:
        self.usage = Usage()
        self.closed = False
        self._tier = tier
        self._prompt = prompt
        self._request = request
        self._limits = limits
        self._events = self._play()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        return await self._events.__anext__()

    def follow(self, sink: Sink) -> bool:
        return False

    async def _play(self) -> AsyncIterator[Event]:
        tier = self._tier
        tier.answers.append(self)
        tier.running += 1
        try:
            self.usage = Usage(prompt_tokens=self._prompt.tokens)
            yield Start(tier.name, tier.model)
            for step in tier.script(self._request, self._prompt, self._limits):
                match step:
                    case float():
                        await asyncio.sleep(step)
                    case asyncio.Event():
                        await step.wait()
                    case Exception():
                        raise step
                    case Finish():
                        yield replace(step, usage=self.usage)
                    case Start():
                        yield step
                    case Think() | Text() | Called():
                        thought = isinstance(step, Think)
                        self.usage += Usage(completion_tokens=1, reasoning_tokens=int(thought))
                        yield step
        finally:
            tier.running -= 1

    async def aclose(self) -> None:
        await self._events.aclose()  # type: ignore[attr-defined]
        if not self.closed:
            self.closed = True
            self._tier.closed += 1


SPEC = TierSpec(model="fake")
HELLO = say("Hello there, friend.")


@dataclass(slots=True)
class FakeTier:
    """Counts a token a word of the messages; holds `context` tokens and ids below `vocabulary`."""

    name: str = "fast"
    script: Script = HELLO
    spec: TierSpec = SPEC
    thinks: bool = False
    closing: int = 0
    ready: bool = True
    reason: str = ""
    context: int = 1000
    vocabulary: int = 500
    model: str = ""
    running: int = 0
    """Answers being played."""
    closed: int = 0
    """Answers that were closed."""
    answers: list[FakeAnswer] = None  # type: ignore[assignment]
    prepared: list[tuple[ChatRequest, bool]] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.model = self.model or f"fake-{self.name}"
        self.answers = []
        self.prepared = []

    @property
    def requests(self) -> list[ChatRequest]:
        return [answer._request for answer in self.answers]

    @property
    def limits(self) -> list[Limits]:
        return [answer._limits for answer in self.answers]

    def health(self) -> TierHealth:
        return TierHealth(ready=self.ready, reason=self.reason, running=self.running)

    async def prepare(self, request: ChatRequest, *, thinking: bool) -> Prompt:
        self.prepared.append((request, thinking))
        if not self.ready:
            raise TierUnavailable(self.name, self.reason or "loading", retry_after=2.0)
        for id in request.sampling.logit_bias:
            if id >= self.vocabulary:
                raise BadField(f"{id} is no token of this model", "logit_bias")
        tokens = sum(len(message.content.split()) + 1 for message in request.messages)
        if tokens + (request.max_tokens or 1) > self.context:
            raise ContextTooLong(prompt_tokens=tokens, max_tokens=request.max_tokens, context=self.context)
        return Prompt(tokens=tokens, room=self.context - tokens, opens_thinking=thinking)

    def stream(self, request: ChatRequest, prompt: Prompt, limits: Limits) -> FakeAnswer:
        return FakeAnswer(self, request, prompt, limits)

    async def close(self) -> None:
        return None


class FakeTiers:
    """An open set of fake tiers."""

    def __init__(self, *tiers: FakeTier, lanes: Mapping[str, Any] | None = None) -> None:
        self.tiers: dict[str, FakeTier] = {tier.name: tier for tier in tiers}
        self.lanes = dict(lanes or {})
        self.closed = False
        self.failure = ""

    async def stats(self) -> Mapping[str, Any]:
        return self.lanes

    async def close(self) -> None:
        self.closed = True
