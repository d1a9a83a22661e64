"""Drives a ladder of tiers: the first one answers, unless it is overruled before any of its text has left."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Self

from tiergate.budget import Limits

from .errors import TierError
from .escalate import EscalationRule, Signals, decide
from .tier import Answer, Prompt, Sink, Tier
from .types import Called, ChatRequest, Event, Finish, Text, Usage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rung:
    """A tier of a ladder, and whether it thinks before it answers."""

    tier: Tier
    thinking: bool = False


def run_cascade(
    rungs: Sequence[Rung],
    request: ChatRequest,
    prompt: Prompt,
    limits: Limits,
    *,
    rule: EscalationRule | None = None,
    clock: Callable[[], float] = monotonic,
) -> Answer:
    """Answer on the lowest rung that will do. `prompt` is the request prepared for the first of them.

    Yields `Start` first and `Finish` last, or raises a `TierError`; `Finish` and `usage` sum over the rungs. On a
    single rung everything streams at once. On more, thinking passes but text is held until `escalate.decide` commits
    to the rung or climbs to the next, which begins with a `Start` of its own; a rung that fails before any text has
    left is climbed from too. `limits` hold on every rung; one that does not think gets no thinking at all.
    """
    assert rungs
    if len(rungs) == 1:
        return _begin(rungs[0], request, prompt, limits)
    return _Cascade(rungs, request, prompt, limits, rule or EscalationRule(), clock)


def _begin(rung: Rung, request: ChatRequest, prompt: Prompt, limits: Limits) -> Answer:
    if not rung.thinking and (limits.hard != 0 or limits.soft is not None):
        limits = replace(limits, hard=0, soft=None)
    return rung.tier.stream(request, prompt, limits)


class _Cascade:
    """An `Answer` from several rungs."""

    def __init__(
        self,
        rungs: Sequence[Rung],
        request: ChatRequest,
        prompt: Prompt,
        limits: Limits,
        rule: EscalationRule,
        clock: Callable[[], float],
    ) -> None:
        self._rungs = deque(rungs)
        self._request = request
        self._limits = limits
        self._rule = rule
        self._clock = clock
        self._ready: deque[Event] = deque()
        self._spent = Usage()
        self._mount(self._rungs.popleft(), prompt)

    @property
    def usage(self) -> Usage:
        return self._spent + self._current.usage

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._ready:
            try:
                event = await anext(self._current)
            except TierError as error:
                if self._committed:
                    raise
                await self._climb(error)
            else:
                await self._take(event)
        return self._ready.popleft()

    def follow(self, sink: Sink) -> bool:
        return False  # climbing takes its time

    async def aclose(self) -> None:
        self._ready.clear()
        self._committed = True
        await self._current.aclose()

    def _mount(self, rung: Rung, prompt: Prompt) -> None:
        """Begin on a rung. One that can be overruled tells its log-probabilities, for the decision."""
        request = self._request
        self._committed = not self._rungs
        if request.whole and not self._committed:
            request = replace(request, whole=False)
        self._private = not self._committed and request.sampling.logprobs is None
        if self._private:
            request = replace(request, sampling=replace(request.sampling, logprobs=0))
        self._held: list[Text | Called] = []
        self._since: float | None = None
        self._finish: Finish | None = None
        self._current = _begin(rung, request, prompt, self._limits)

    async def _take(self, event: Event) -> None:
        if isinstance(event, Finish):
            event = replace(event, usage=self.usage)
            if not self._committed:
                self._finish = event
                await self._judge()
                return
        elif not self._committed and isinstance(event, Text | Called):
            self._held.append(event)
            if self._since is None:
                self._since = self._clock()
            await self._judge()
            return
        self._ready.append(Text(event.text) if self._private and isinstance(event, Text) else event)

    async def _judge(self) -> None:
        texts = [event for event in self._held if isinstance(event, Text)]
        logprobs = tuple(token.logprob for event in texts for token in event.logprobs)
        signals = Signals(
            text="".join(event.text for event in texts),
            tokens=max(len(texts), len(logprobs)),
            seconds=0.0 if self._since is None else self._clock() - self._since,
            logprobs=logprobs,
            called=len(texts) < len(self._held),
            finished=self._finish is not None,
        )
        verdict = decide(signals, self._rule)
        if verdict == "climb":
            await self._climb(None)
        elif verdict == "commit":
            self._commit()

    def _commit(self) -> None:
        """This rung's answer it is: what was held may leave, and the tier does not change any more."""
        self._committed = True
        for event in self._held:
            self._ready.append(Text(event.text) if self._private and isinstance(event, Text) else event)
        self._held = []
        if self._finish is not None:
            self._ready.append(self._finish)

    async def _climb(self, failure: TierError | None) -> None:
        """Go on to the next rung that takes the request. Without one, stay, or raise what made this rung fail."""
        while self._rungs:
            rung = self._rungs.popleft()
            try:
                prompt = await rung.tier.prepare(self._request, thinking=rung.thinking)
            except TierError as error:
                log.info("%s cannot take over: %s", rung.tier.name, error)
                continue
            log.info("%s takes over%s", rung.tier.name, f": {failure}" if failure is not None else "")
            await self._current.aclose()
            self._spent = self.usage
            self._mount(rung, prompt)
            return
        if failure is not None:
            raise failure
        self._commit()
