"""One request inside the engine: its tokens, where its keys and values are, and when it ends."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal

from . import thinking
from .block_pool import Chain
from .edits import Edits
from .messages import FinishReason, Logprob, SamplingParams
from .thinking import ThinkRules, ThinkState

Status = Literal["waiting", "running", "done"]


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """Owned by the `Scheduler` of its lane while it lives. `len(ids) - computed` is its gap."""

    client: bytes
    id: str
    order: int
    """Arrival number in its lane, never used twice."""
    priority: int
    ids: array[int]
    """Prompt and generated tokens, typecode `q`."""
    prompt_tokens: int
    sampling: SamplingParams
    seed: int
    """int64: the request's, or one the engine picked."""
    eos: tuple[int, ...]
    """The model's; none of them ends this sequence when it ignores them."""
    stops: frozenset[int]
    """What ends it: end-of-sequence ids unless ignored, and its own stop ids."""
    chain: Chain
    edits: Edits | None = None
    """What changes its logits, None when nothing does."""
    rules: ThinkRules | None = None
    think: ThinkState | None = None
    forced: tuple[int, ...] = ()
    """Tokens the request wants emitted first."""
    forced_next: int = 0
    """How many of them are out."""
    store: bool = True
    arrived: float = 0.0
    """Seconds on the engine's clock."""
    status: Status = "waiting"
    computed: int = 0
    """Tokens whose keys and values are in the cache."""
    committed: int = 0
    """Full blocks offered to the prefix cache."""
    blocks: list[int] = field(default_factory=list)
    row: int = -1
    """Row of the lane's block tables, while it runs."""
    sent: int = 0
    """Length of `ids` at the latest `Tokens` message."""
    logprobs: list[Logprob] = field(default_factory=list)
    """Of the tokens not sent yet, when asked for."""
    cached_tokens: int | None = None
    """Set when it is first scheduled."""
    forced_tokens: int = 0
    preemptions: int = 0
    finish: FinishReason | None = None
    stop_id: int | None = None

    @property
    def generated(self) -> int:
        return len(self.ids) - self.prompt_tokens

    @property
    def thinking_tokens(self) -> int:
        return self.think.spent if self.think is not None else 0

    def next_forced(self) -> int | None:
        """The token that must come next, if one must. Begins the cut of a thought that has reached its limit."""
        if self.forced_next < len(self.forced):
            return self.forced[self.forced_next]
        if self.think is None or self.rules is None:
            return None
        if not self.think.queue:
            self.think = thinking.settle(self.rules, self.think)
        return self.think.queue[0] if self.think.queue else None

    def resolve(self, token: int) -> int:
        """The token to emit where `token` was sampled: the closer, where the model would end its turn in a thought."""
        if self.think is None or self.rules is None:
            return token
        state = thinking.intercept(self.rules, self.think, token)
        return state.queue[0] if state.queue else token

    def accept(self, token: int, logprob: Logprob | None = None) -> None:
        """Take a sampled token, already resolved or not, and end the sequence if that is the word to end on."""
        if self.think is not None and self.rules is not None:
            self.think = thinking.intercept(self.rules, self.think, token)
            if self.think.queue:
                token = self.think.queue[0]
                self.forced_tokens += 1
        if logprob is not None:
            self.logprobs.append(logprob)
        self._append(token)

    def accept_forced(self, token: int, logprob: Logprob | None = None) -> None:
        """Take the token that `next_forced` named."""
        if self.forced_next < len(self.forced):
            self.forced_next += 1
        self.forced_tokens += 1
        if logprob is not None:
            self.logprobs.append(logprob)
        self._append(token)

    def drain_forced(self) -> None:
        """Take all tokens known to come next at once: they are a gap like any other, so no step is spent on each.

        Not where log-probabilities are wanted, which only a step per token can tell.
        """
        if self.sampling.logprobs is not None:
            return
        while self.finish is None:
            token = self.next_forced()
            if token is None:
                return
            self.accept_forced(token)

    def may_end(self) -> bool:
        """Whether the next token may be one that ends the sequence."""
        if self.generated < self.sampling.min_tokens:
            return False
        return self.think is None or not self.think.fresh

    def _append(self, token: int) -> None:
        inert = False
        if self.think is not None and self.rules is not None:
            inert = thinking.inert(self.think)
            self.think = thinking.advance(self.rules, self.think, token)
        self.ids.append(token)
        if self.edits is not None:
            self.edits.count(token)
        if not inert and token in self.stops:
            self.finish = "stop"
            self.stop_id = token
        elif len(self.ids) - self.prompt_tokens >= self.sampling.max_tokens:
            self.finish = "length"
