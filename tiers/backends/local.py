"""A tier on our own engine: messages become token ids, token ids become events."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from functools import partial
from typing import get_args

from tiergate.budget import Limits
from tiergate.engine import LaneConfig, SamplingParams, ThinkLimit, messages

from ..assemble import Assembler
from ..chat import Chat, open_chat, request_size
from ..config import Precision, TierSpec
from ..engine_client import EngineClient
from ..errors import BadField, ContextTooLong, TierUnavailable
from ..generation import Generation
from ..load import Load
from ..marker_ids import MarkerIds, read_markers
from ..shared import Shared
from ..tier import Answer, Prompt, TierHealth
from ..types import ChatRequest, Start

INLINE = 8192
"""Characters up to which a prompt is encoded at once; longer ones go to a worker thread. About 2 ms."""
GATHERED = 64
"""Replies of the engine, a step each, that are read together where nobody watches and no stop string may end it."""


async def open(name: str, spec: TierSpec, shared: Shared) -> LocalTier:
    """Load the model folder's tokenizer and template, and put the model on the shared engine.

    Raises `ModelMissing`.
    """
    folder = shared.models.resolve(spec.model)
    facts = folder.thinking
    thinking = replace(
        spec.thinking,
        opener=spec.thinking.opener or facts.opener,
        closer=spec.thinking.closer or facts.closer,
        handoff=spec.thinking.handoff or facts.handoff,
        budget=facts.budget if spec.thinking.budget is None else spec.thinking.budget,
    )
    chat = await asyncio.to_thread(open_chat, folder.path, opener=thinking.opener, closer=thinking.closer)
    lane = LaneConfig(
        name=name,
        model=str(folder.path),
        precision=_precision(spec.precision, folder.precision),
        kv_precision=spec.kv_precision,
        kv_bytes=spec.kv_bytes,
        kv_host_bytes=spec.kv_host_bytes,
        kv_disk_bytes=spec.kv_disk_bytes,
        kv_disk_path=spec.kv_disk_path,
        context=spec.context,
        max_sequences=spec.max_sequences,
        max_waiting=spec.max_waiting,
        max_batch_tokens=spec.max_batch_tokens,
        weight=spec.weight,
    )
    client = shared.engine.add(lane)
    markers = await asyncio.to_thread(read_markers, chat, thinking, facts.after) if chat.thinks else None
    return LocalTier(name, replace(spec, thinking=thinking), folder.name, chat, markers, client, shared)


def _precision(asked: Precision, measured: str) -> Precision:
    """What the lane is told: `auto` is whatever was measured to be best for the model, if anything was."""
    known: dict[str, Precision] = {one: one for one in get_args(Precision)}
    return known.get(measured, asked) if asked == "auto" else asked


class LocalTier:
    """A `Tier`. Stateless but for its load; the engine client and the chat are shared with its answers."""

    def __init__(
        self,
        name: str,
        spec: TierSpec,
        model: str,
        chat: Chat,
        markers: MarkerIds | None,
        client: EngineClient,
        shared: Shared,
    ) -> None:
        self.name = name
        self.spec = spec
        self._model = model
        self._chat = chat
        self._markers = markers
        self._client = client
        self._load_wait = shared.load_wait
        self._load = Load(shared.clock)

    @property
    def model(self) -> str:
        return self._model

    @property
    def thinks(self) -> bool:
        return self._chat.thinks

    @property
    def closing(self) -> int:
        return self._markers.closing if self._markers is not None else 0

    def health(self) -> TierHealth:
        load = self._load
        ready, reason = True, ""
        if self.name not in self._client.lanes:
            ready, reason = False, self._client.reason or f"the engine does not serve {self.name}"
        elif load.breaker.open:
            ready, reason = False, "its latest answers all failed"
        return TierHealth(ready=ready, reason=reason, running=load.running, waiting=load.waiting)

    async def prepare(self, request: ChatRequest, *, thinking: bool) -> Prompt:
        lane = await self._lane()
        if not self._load.breaker.admit():
            pause = self._load.breaker.retry_after
            raise TierUnavailable(self.name, f"{self.name} pauses: its latest answers all failed", pause)
        _check_ids(request, lane.vocab)
        encode = partial(self._chat.encode, request, thinking=thinking, most=lane.context)
        if request_size(request) <= INLINE and not request.tools:
            encoded = encode()
        else:
            encoded = await asyncio.to_thread(encode)
        room = lane.context - encoded.tokens
        if room < max(request.max_tokens or 1, 1):
            raise ContextTooLong(prompt_tokens=encoded.tokens, max_tokens=request.max_tokens, context=lane.context)
        return Prompt(tokens=encoded.tokens, room=room, ids=encoded.ids, opens_thinking=encoded.opens_thinking)

    def stream(self, request: ChatRequest, prompt: Prompt, limits: Limits) -> Answer:
        sampling = request.sampling
        tools = bool(request.tools) and request.tool_choice != "none"
        command = messages.Generate(
            id=self._client.new_id(),
            lane=self.name,
            token_ids=list(prompt.ids),
            sampling=SamplingParams(
                max_tokens=min(limits.max_tokens, prompt.room),
                temperature=self.spec.temperature if sampling.temperature is None else sampling.temperature,
                top_p=self.spec.top_p if sampling.top_p is None else sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                presence_penalty=sampling.presence_penalty,
                frequency_penalty=sampling.frequency_penalty,
                repetition_penalty=sampling.repetition_penalty,
                logit_bias=dict(sampling.logit_bias),
                seed=sampling.seed,
                stop_token_ids=sampling.stop_token_ids,
                min_tokens=sampling.min_tokens,
                ignore_eos=sampling.ignore_eos,
                logprobs=sampling.logprobs,
            ),
            think=self._think(prompt, limits, tools),
            salt=request.salt,
            priority=request.priority,
        )
        lane = self._client.lanes.get(self.name)
        assembler = Assembler(
            self._chat.vocabulary,
            self._chat.markers(tools=tools),
            thinking=prompt.opens_thinking,
            stop=request.stop,
            enders=frozenset(sampling.stop_token_ids).union(lane.eos if lane is not None else ()),
            new_call_id=_new_call_id,
        )
        start = Start(self.name, self._model)
        context = prompt.tokens + prompt.room
        gather = GATHERED if request.whole and not request.stop else 1
        return Generation(self._client, command, assembler, start, self._load, context, gather)

    async def close(self) -> None:
        """Nothing of its own: the engine belongs to all local tiers."""

    async def _lane(self) -> messages.LaneInfo:
        if not self._client.ready and not await self._client.wait_ready(self._load_wait):
            raise TierUnavailable(self.name, f"{self.name} is not ready: {self._client.reason}", 2.0)
        lane = self._client.lanes.get(self.name)
        if lane is None:
            raise TierUnavailable(self.name, f"the engine does not serve {self.name}")
        return lane

    def _think(self, prompt: Prompt, limits: Limits, tools: bool) -> ThinkLimit | None:
        if self._markers is None:
            return None
        markers = self._markers
        return ThinkLimit(
            closers=markers.closers,
            openers=markers.openers,
            implicit_closers=markers.calls if tools else (),
            call_closers=markers.call_ends if tools else (),
            open=prompt.opens_thinking,
            hard=limits.hard,
            soft=limits.soft,
            handoff=markers.handoff,
            after=markers.after,
            answer_reserve=limits.answer_reserve,
            partial=markers.partial if limits.hard != 0 else {},
            continuing=markers.continuing if limits.hard != 0 else {},
        )


def _check_ids(request: ChatRequest, vocab: int) -> None:
    for id in request.sampling.logit_bias:
        if not 0 <= id < vocab:
            raise BadField(f"token id {id} is outside the vocabulary of {vocab} tokens", "logit_bias")
    for id in request.sampling.stop_token_ids:
        if not 0 <= id < vocab:
            raise BadField(f"token id {id} is outside the vocabulary of {vocab} tokens", "stop_token_ids")


def _new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
