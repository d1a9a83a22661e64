"""An engine without a model: it speaks the protocol of `engine/messages.py` and plays scripts instead of thinking."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import zmq

from tiergate.engine import EngineConfig, messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What becomes of one request."""

    ids: Sequence[int]
    """Tokens to generate, as far as the request's `max_tokens` lets them."""
    per_step: int = 1
    """Tokens a step, all in one message."""
    reason: messages.FinishReason = "stop"
    """How it ends behind the last token. `stop`: the last token is the one that ended it."""
    hangs: bool = False
    """It does not end by itself."""
    fails: messages.FailCode | None = None
    """It breaks behind the last token."""
    thinking_tokens: int = 0
    cached_tokens: int = 0
    logprob: float = -0.5
    """Of every token, when the request asks for log-probabilities; every token is its own rival."""


@dataclass(slots=True)
class _Running:
    client: bytes
    request: messages.Generate
    script: Script
    done: int = 0


@dataclass(slots=True)
class FakeEngine:
    """Runs in a thread of its own (`start`, or `with`), or in the caller's (`run`), until `close` or `crash`.

    All requests advance together, a step every `step` seconds, and a client's replies of a step go in one frame, as the
    real engine does it.
    """

    lanes: Mapping[str, messages.LaneInfo]
    script: Callable[[messages.Generate], Script]
    step: float = 0.0
    address: str = ""
    """ZeroMQ endpoint to bind; empty picks a private one."""
    load_seconds: float = 0.0
    """Time before it is ready."""
    requests: list[messages.Generate] = field(default_factory=list)
    """All that ever came."""
    aborted: list[str] = field(default_factory=list)
    """Ids that were running when their abort came."""
    hellos: int = 0
    known: set[bytes] = field(default_factory=set)
    """Clients that were told that it is ready."""
    alive: bool = True
    frozen: bool = False
    """While set it neither reads nor writes, and keeps its connections."""
    _running: dict[tuple[bytes, str], _Running] = field(default_factory=dict)
    _folder: tempfile.TemporaryDirectory[str] | None = None
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        if not self.address:
            self._folder = tempfile.TemporaryDirectory(prefix="tiergate-fake-")
            self.address = f"ipc://{Path(self._folder.name) / 'engine'}"

    def start(self) -> Self:
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """End, and take every connection along. There is no goodbye in the protocol, so it looks like a crash."""
        self.alive = False
        if self._thread is not None:
            self._thread.join()
        if self._folder is not None:
            self._folder.cleanup()

    crash = close

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def open_requests(self) -> int:
        return len(self._running)

    def run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.SNDHWM, 0)  # a reader that is busy for a while misses nothing
        router.bind(self.address)
        ready_at = time.monotonic() + self.load_seconds
        due = time.monotonic()
        try:
            while self.alive:
                now = time.monotonic()
                if self.frozen:
                    time.sleep(0.005)
                    continue
                wait = min(max(due - now, 0.0), 0.02) if self._running else 0.02
                if router.poll(int(wait * 1000)) and now >= ready_at:
                    self._drain(router)
                if self._running and time.monotonic() >= due:
                    due = max(due + self.step, time.monotonic() - self.step)
                    self._advance(router)
        finally:
            router.close()
            context.term()

    def _drain(self, router: zmq.Socket[bytes]) -> None:
        decode = msgspec.msgpack.Decoder(list[messages.Command]).decode
        while True:
            try:
                client, frame = router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            replies: list[messages.Reply] = []
            for command in decode(frame):
                if isinstance(command, messages.Generate):
                    self.requests.append(command)
                    self._running[client, command.id] = _Running(client, command, self.script(command))
                elif isinstance(command, messages.Abort):
                    running = self._running.pop((client, command.id), None)
                    if running is not None:
                        self.aborted.append(command.id)
                        replies.append(self._finished(running, "abort", None))
                elif isinstance(command, messages.Hello):
                    self.hellos += 1
                    if client not in self.known:
                        self.known.add(client)
                        replies.append(messages.Ready(pid=os.getpid(), lanes=dict(self.lanes)))
                else:
                    replies.append(messages.Stats(lanes={name: self._stats(name) for name in self.lanes}))
            if replies:
                router.send_multipart((client, msgspec.msgpack.encode(replies)))

    def _advance(self, router: zmq.Socket[bytes]) -> None:
        frames: dict[bytes, list[messages.Reply]] = defaultdict(list)
        for key, running in list(self._running.items()):
            script, sampling = running.script, running.request.sampling
            end = min(len(script.ids), sampling.max_tokens)
            ids = list(script.ids[running.done : min(running.done + script.per_step, end)])
            running.done += len(ids)
            replies = frames[running.client]
            if ids:
                logprobs = None
                if sampling.logprobs is not None:
                    logprobs = [
                        messages.Logprob(script.logprob, [(id, script.logprob)] * min(sampling.logprobs, 1))
                        for id in ids
                    ]
                replies.append(messages.Tokens(running.request.id, ids, logprobs))
            if running.done < end or (script.hangs and end < sampling.max_tokens):
                continue
            del self._running[key]
            if script.fails is not None:
                replies.append(
                    messages.Failed(
                        id=running.request.id,
                        code=script.fails,
                        message="as the script says",
                        completion_tokens=running.done,
                        prompt_tokens=len(running.request.token_ids),
                    )
                )
            elif running.done == sampling.max_tokens and running.done < len(script.ids):
                replies.append(self._finished(running, "length", None))
            else:
                last = script.ids[-1] if script.reason == "stop" and script.ids else None
                replies.append(self._finished(running, script.reason, last))
        encode = msgspec.msgpack.Encoder().encode
        for client, replies in frames.items():
            if replies:
                router.send_multipart((client, encode(replies)))

    def _finished(self, running: _Running, reason: messages.FinishReason, stop_id: int | None) -> messages.Finished:
        return messages.Finished(
            id=running.request.id,
            reason=reason,
            stop_id=stop_id,
            prompt_tokens=len(running.request.token_ids),
            cached_tokens=running.script.cached_tokens,
            completion_tokens=running.done,
            thinking_tokens=min(running.script.thinking_tokens, running.done),
        )

    def _stats(self, lane: str) -> messages.LaneStats:
        running = sum(one.request.lane == lane for one in list(self._running.values()))
        return messages.LaneStats(
            running=running,
            waiting=0,
            free=self.lanes[lane].blocks,
            cached=0,
            active=0,
            blocks=self.lanes[lane].blocks,
            steps=0,
            prompt_tokens=sum(len(one.token_ids) for one in self.requests if one.lane == lane),
            generated_tokens=0,
            cached_tokens=0,
            preemptions=0,
            busy_seconds=0.0,
        )


def lane_info(name: str, *, vocab: int, eos: Sequence[int], context: int = 2048, model: str = "") -> messages.LaneInfo:
    return messages.LaneInfo(
        name=name,
        model=model or name,
        context=context,
        vocab=vocab,
        eos=tuple(eos),
        dtype="float32",
        blocks=128,
        block_size=16,
    )


@dataclass(slots=True)
class FakeProcess:
    """What `launch` returns, around a fake engine."""

    engine: FakeEngine
    returncode: int | None = None

    @property
    def address(self) -> str:
        return self.engine.address

    @property
    def pid(self) -> int:
        return os.getpid()

    def alive(self) -> bool:
        if not self.engine.alive and self.returncode is None:
            self.returncode = -9
        return self.returncode is None

    def refusal(self) -> str:
        return ""

    def stop(self, timeout: float = 5.0) -> None:
        self.engine.close()
        self.alive()


@dataclass(slots=True)
class FakeLaunch:
    """Stands in for `tiergate.engine.launch`: each call starts a fake engine with the lanes it was asked for."""

    vocab: int
    eos: Sequence[int]
    script: Callable[[messages.Generate], Script]
    context: int = 2048
    step: float = 0.0
    load_seconds: float = 0.0
    engines: list[FakeEngine] = field(default_factory=list)
    """All that were ever started, the latest last."""
    configs: list[EngineConfig] = field(default_factory=list)

    def __call__(self, config: EngineConfig) -> FakeProcess:
        self.configs.append(config)
        lanes = {
            lane.name: lane_info(
                lane.name,
                vocab=self.vocab,
                eos=self.eos,
                context=lane.context or self.context,
                model=lane.model,
            )
            for lane in config.lanes
        }
        engine = FakeEngine(lanes, self.script, step=self.step, load_seconds=self.load_seconds)
        self.engines.append(engine)
        return FakeProcess(engine.start())
