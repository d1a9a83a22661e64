"""Engine cores on fake models, and what comes out of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from fakes.model import FakeRunner, naive_logits
from tiergate.engine import LaneConfig
from tiergate.engine.block_pool import keyed_digest
from tiergate.engine.core import EngineCore
from tiergate.engine.lane import Lane
from tiergate.engine.messages import Failed, Finished, Generate, Logprob, Reply, SamplingParams, ThinkLimit, Tokens

CLIENT = b"client"


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Heard:
    """What a client was told about one sequence."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    end: Finished | Failed | None = None

    @property
    def finished(self) -> Finished:
        assert isinstance(self.end, Finished), self.end
        return self.end

    @property
    def failed(self) -> Failed:
        assert isinstance(self.end, Failed), self.end
        return self.end


class Client:
    """Collects replies and holds them to the protocol: nothing follows a sequence's last word."""

    def __init__(self) -> None:
        self.heard: dict[str, Heard] = {}

    def hear(self, replies: list[Reply]) -> None:
        for reply in replies:
            assert isinstance(reply, (Tokens, Finished, Failed))
            heard = self.heard.setdefault(reply.id, Heard())
            assert heard.end is None, f"{reply} came after {heard.end}"
            if isinstance(reply, Tokens):
                assert reply.ids
                heard.ids += reply.ids
                heard.logprobs += reply.logprobs or []
            else:
                heard.end = reply


def make_lane(runner: FakeRunner | None = None, *, clock: Clock | None = None, **config: object) -> Lane:
    """A lane named `a` unless told otherwise; small enough that chunks, sharing and preemption all happen."""
    settings: dict[str, object] = {"name": "a", "model": "fake", "max_batch_tokens": 16, "max_sequences": 8, **config}
    return Lane(
        LaneConfig(**settings),  # type: ignore[arg-type]
        runner or FakeRunner(),
        digest=keyed_digest(b"test"),
        clock=clock or Clock(),
    )


def make_core(runner: FakeRunner | None = None, **config: object) -> EngineCore:
    return EngineCore([make_lane(runner, **config)], seeds=lambda: 7)


def request(
    id: str,
    token_ids: list[int],
    *,
    lane: str = "a",
    think: ThinkLimit | None = None,
    forced: tuple[int, ...] = (),
    salt: str = "",
    store: bool = True,
    priority: int = 0,
    max_tokens: int = 12,
    temperature: float = 0.0,
    **sampling: object,
) -> Generate:
    """Greedy unless told otherwise; what is not named here goes into `SamplingParams`."""
    return Generate(
        id=id,
        lane=lane,
        token_ids=token_ids,
        sampling=SamplingParams(max_tokens=max_tokens, temperature=temperature, **sampling),  # type: ignore[arg-type]
        think=think,
        forced=forced,
        salt=salt,
        store=store,
        priority=priority,
    )


def run(core: EngineCore, requests: list[Generate], *, steps: int = 10_000) -> dict[str, Heard]:
    """Serve all of them together, in as few calls of the runner as may be, checking the books after every step."""
    client = Client()
    for one in requests:
        core.add(CLIENT, one)
    client.hear(core.take_replies().get(CLIENT, []))
    for _ in range(steps):
        if not core.has_work:
            return client.heard
        core.step(wake=-1)
        core.check()
        client.hear(core.take_replies().get(CLIENT, []))
    raise AssertionError(f"not done after {steps} steps")


def naive_greedy(prompt: list[int], count: int, *, vocab: int = 64, eos: tuple[int, ...] = (0,)) -> list[int]:
    """What a model that recomputes everything at every token would answer."""
    ids = list(prompt)
    while len(ids) < len(prompt) + count:
        ids.append(int(naive_logits(ids, vocab).argmax()))
        if ids[-1] in eos:
            break
    return ids[len(prompt) :]
