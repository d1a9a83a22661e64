"""One answer of a local tier: sends the request, reads the replies, gives out events, and sees to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Self

from tiergate.engine import EngineDead, messages

from .assemble import Assembler
from .engine_client import AnswerPart, Channel, EngineClient
from .errors import BadField, ContextTooLong, GenerationFailed, TierError, TierUnavailable
from .load import Load
from .tier import Sink
from .types import Event, Finish, FinishReason, Start, Usage

ABORT_WAIT = 1.0
"""Seconds to wait for the engine's count of an answer that was cut off; an engine step takes a fraction of it."""

Phase = Literal["new", "waiting", "running", "over"]
"""Not sent yet; sent; heard of; nothing more will come."""


class Generation:
    """An `Answer`. Sends the request when the first event is asked for; `Start` comes with the engine's first word."""

    def __init__(
        self,
        client: EngineClient,
        command: messages.Generate,
        assembler: Assembler,
        start: Start,
        load: Load,
        context: int,
        gather: int = 1,
    ) -> None:
        """`context`: most tokens of prompt and answer that the lane can hold.

        `gather`: replies of the engine to be read together behind the first one, for an answer that nobody watches.
        """
        self._client = client
        self._command = command
        self._assembler = assembler
        self._start = start
        self._load = load
        self._context = context
        self._gather = gather
        self._channel: Channel | None = None
        self._sink: Sink | None = None
        self._events: deque[Event] = deque()
        self._phase: Phase = "new"
        self._error: TierError | None = None
        self._stopping_until: float | None = None
        self._received = 0
        self._final: Usage | None = None

    @property
    def usage(self) -> Usage:
        if self._final is not None:
            return self._final
        if self._channel is None:
            return Usage()
        return Usage(
            prompt_tokens=len(self._command.token_ids),
            completion_tokens=self._received,
            reasoning_tokens=self._assembler.thinking_tokens,
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        events = self._events
        while not events:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._phase == "over":
                raise StopAsyncIteration
            if self._channel is None:
                self._begin()
            else:
                await self._receive(self._channel)
        return events.popleft()

    def follow(self, sink: Sink) -> bool:
        self._sink = sink
        self._begin()
        if self._channel is not None:
            self._channel.listen(self._heard)
        else:
            self._hand_over()
        return True

    async def aclose(self) -> None:
        self._leave_sink()
        self._events.clear()
        self._error = None
        if self._channel is None or self._phase == "over":
            self._phase = "over"
            return
        self._client.abort(self._command.id)
        try:
            with contextlib.suppress(TimeoutError, EngineDead):
                async with asyncio.timeout(ABORT_WAIT):
                    while self._final is None:
                        for reply in await self._channel.take():
                            self._count(reply)
        finally:
            self._end(sound=None)

    def _begin(self) -> None:
        try:
            self._channel = self._client.generate(self._command)
        except EngineDead as error:
            self._phase = "over"
            self._error = TierUnavailable(self._start.tier, f"{self._start.tier} cannot answer now: {error}")
            return
        self._phase = "waiting"
        self._load.began()

    async def _receive(self, channel: Channel) -> None:
        """Wait for the next replies and make their events."""
        try:
            if self._stopping_until is None:
                replies = await channel.take(self._gather if self._phase == "running" else 1)
            else:
                async with asyncio.timeout_at(self._stopping_until):
                    replies = await channel.take()
        except asyncio.CancelledError:
            self._client.abort(self._command.id)
            raise
        except (TimeoutError, EngineDead) as error:
            self._cut(str(error))
            return
        self._read_all(replies)

    def _heard(self) -> None:
        """Make the events of replies that have just come, and hand them over."""
        channel = self._channel
        assert channel is not None
        stopping = self._stopping_until
        try:
            self._read_all(channel.collect())
            if channel.lost is not None and self._phase != "over":
                self._cut(channel.lost)
            channel.expect(self._gather if self._phase == "running" and self._stopping_until is None else 1)
            if self._stopping_until is not None and stopping is None and self._phase != "over":
                asyncio.get_running_loop().call_at(self._stopping_until, self._give_up)
        except Exception as error:  # this answer's own trouble, and not that of all others on the connection
            if self._sink is not None:
                self._sink.fail(error)
            self._leave_sink()
        else:
            self._hand_over()

    def _give_up(self) -> None:
        """The engine has not said in time how an answer ended that a stop string had ended here."""
        if self._sink is not None and self._phase != "over":
            self._finish("stop")
            self._hand_over()

    def _hand_over(self) -> None:
        sink = self._sink
        if sink is None:
            return
        if self._events:
            events = list(self._events)
            self._events.clear()
            sink.put(events)
        if self._error is not None:
            error, self._error = self._error, None
            sink.fail(error)
            self._leave_sink()
        elif self._phase == "over":
            sink.over()
            self._leave_sink()

    def _leave_sink(self) -> None:
        self._sink = None
        if self._channel is not None:
            self._channel.listen(None)

    def _cut(self, why: str) -> None:
        """Nothing more will come from the engine."""
        if self._stopping_until is not None:  # the answer is complete, only its exact count is missing
            self._finish("stop")
        else:
            self._fail(self._lost(why), sound=None)

    def _read_all(self, replies: Sequence[AnswerPart]) -> None:
        for reply in replies if len(replies) == 1 or self._gather == 1 else joined(replies):
            self._read(reply)

    def _read(self, reply: AnswerPart) -> None:
        self._count(reply)
        if isinstance(reply, messages.Failed):
            self._fail(self._failure(reply), sound=False if reply.code in ("numeric", "internal") else None)
            return
        if self._phase == "waiting":
            self._phase = "running"
            self._load.answered()
            self._events.append(self._start)
        if isinstance(reply, messages.Finished):
            if self._stopping_until is None:
                complete = reply.reason == "stop"
                self._events.extend(self._assembler.finish(complete=complete, end=reply.stop_id))
            self._finish(reply.reason)
        elif self._stopping_until is None:
            self._events.extend(self._assembler.feed(reply.ids, reply.logprobs))
            if self._assembler.stopped is not None:
                self._client.abort(self._command.id)
                self._stopping_until = asyncio.get_running_loop().time() + ABORT_WAIT

    def _count(self, reply: AnswerPart) -> None:
        if isinstance(reply, messages.Tokens):
            self._received += len(reply.ids)
        elif isinstance(reply, messages.Finished):
            self._final = Usage(
                prompt_tokens=reply.prompt_tokens,
                cached_tokens=reply.cached_tokens,
                completion_tokens=reply.completion_tokens,
                reasoning_tokens=reply.thinking_tokens,
                forced_tokens=reply.forced_tokens,
            )
        else:
            self._final = Usage(
                prompt_tokens=reply.prompt_tokens,
                completion_tokens=reply.completion_tokens,
                reasoning_tokens=min(self._assembler.thinking_tokens, reply.completion_tokens),
            )

    def _billed(self) -> Usage:
        """What was spent up to the end of the answer: how far the engine ran behind a stop string is our doing."""
        usage, taken = self.usage, self._assembler.taken
        if self._assembler.stopped is None or usage.completion_tokens <= taken:
            return usage
        return replace(usage, completion_tokens=taken, reasoning_tokens=min(usage.reasoning_tokens, taken))

    def _finish(self, reason: messages.FinishReason) -> None:
        stop = self._assembler.stopped
        told: FinishReason = "stop" if stop is not None else reason
        if told == "stop" and self._assembler.called:
            told = "tool_calls"
        self._final = self._billed()
        self._events.append(Finish(reason=told, usage=self._final, stop=stop))
        self._end(sound=True)

    def _fail(self, error: TierError, *, sound: bool | None) -> None:
        self._error = error
        self._end(sound=sound)

    def _end(self, *, sound: bool | None) -> None:
        self._load.ended(answered=self._phase == "running", sound=sound)
        self._phase = "over"
        self._client.forget(self._command.id)

    def _lost(self, reason: str) -> TierError:
        if self._phase == "waiting":
            return TierUnavailable(self._start.tier, f"{self._start.tier} cannot answer now: {reason}")
        return GenerationFailed(f"{self._start.tier} broke off its answer: {reason}")

    def _failure(self, reply: messages.Failed) -> TierError:
        match reply.code:
            case "invalid":
                return BadField(reply.message, "sampling")
            case "too_long":
                return ContextTooLong(
                    prompt_tokens=len(self._command.token_ids),
                    max_tokens=self._command.sampling.max_tokens,
                    context=self._context,
                )
            case "busy" | "unknown_lane":
                return TierUnavailable(self._start.tier, f"{self._start.tier} cannot answer now: {reply.message}")
            case "numeric" | "internal":
                return GenerationFailed(f"{self._start.tier} broke off its answer: {reply.message}")


def joined(replies: Sequence[AnswerPart]) -> list[AnswerPart]:
    """Replies to one request with all their tokens in one."""
    tokens = [reply for reply in replies if isinstance(reply, messages.Tokens)]
    rest: list[AnswerPart] = [reply for reply in replies if not isinstance(reply, messages.Tokens)]
    if not tokens:
        return rest
    ids = [id for reply in tokens for id in reply.ids]
    logprobs = None
    if tokens[0].logprobs is not None:
        logprobs = [logprob for reply in tokens for logprob in reply.logprobs or ()]
    return [messages.Tokens(tokens[0].id, ids, logprobs), *rest]
