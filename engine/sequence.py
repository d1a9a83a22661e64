"""One request inside the engine: its tokens, where its keys and values are, and when it ends."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal

from . import thinking
from .block_pool import Chain
from .edits import Edits
from .messages import FinishReason, Logprob, SamplingParams
from .step_buffers import NUMERIC
from .thinking import ThinkRules, ThinkState

Status = Literal["waiting", "running", "done"]


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """Owned by the `Scheduler` of its lane while it lives. Its gap is `wanted - computed`.

    Most tokens change nothing but the text: while `ids` stays shorter than `calm_until`, one that is not in `watch`
    need only be appended, whatever the rules are, and all such tokens are drawn with the same parameters.
    """

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
    think_seen: ThinkState | None = None
    """The state of thinking behind the first `think_length` of `ids`; `think` is up to date."""
    think_length: int = 0
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
    fills_at: int = 0
    """Length of `ids` with which, when it decodes, the next block is full and to be offered."""
    blocks: list[int] = field(default_factory=list)
    row: int = -1
    """Row of the lane's block tables, while it runs."""
    drafts: tuple[int, ...] = ()
    """Guesses at the next tokens, at most `draft_room`, none of them in `watch`. Each widens the gap by one; a plan may
    leave off the last of them, and a step forgets them all."""
    calm_until: int = 0
    """Length of `ids` up to which tokens can be taken calmly; the token that reaches it is to be accepted in full."""
    watch: frozenset[int] = frozenset()
    """Tokens to be accepted in full: those that may end it, those that mean something to thinking, NUMERIC."""
    stale: bool = True
    """Whether what it draws with may differ from what was last written down for its row."""
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

    def __post_init__(self) -> None:
        self.sent = self.think_length = self.prompt_tokens
        self.watch = self.stops | {NUMERIC}
        if self.rules is not None:
            self.think_seen = thinking.start(self.rules)
            self.watch |= self.rules.eos | self.rules.marks
        self.drain_forced()
        self.look_ahead()

    @property
    def generated(self) -> int:
        return len(self.ids) - self.prompt_tokens

    @property
    def wanted(self) -> int:
        """Tokens to be in the cache, drafted ones included."""
        return len(self.ids) + len(self.drafts)

    @property
    def draft_room(self) -> int:
        """How many tokens may be guessed ahead, so that they and the one behind are drawn with the same parameters."""
        return self.calm_until - len(self.ids) - 1

    @property
    def think(self) -> ThinkState | None:
        """Where thinking stands now; None without rules for it."""
        state = self.think_seen
        if state is not None and self.rules is not None and self.think_length < len(self.ids):
            state = self.think_seen = thinking.advance_calmly(self.rules, state, self.ids[self.think_length :])
            self.think_length = len(self.ids)
        return state

    @property
    def thinking_tokens(self) -> int:
        state = self.think
        return state.spent if state is not None else 0

    def look_ahead(self) -> None:
        """Say in `calm_until` how far the tokens to come can be taken calmly."""
        params = self.sampling
        calm = params.max_tokens - self.generated
        penalised = self.edits is not None and self.edits.penalises
        if penalised or params.logprobs is not None or self.forced_next < len(self.forced):
            calm = 1
        elif self.generated < params.min_tokens:
            calm = min(calm, params.min_tokens - self.generated)
        state = self.think
        if state is not None and self.rules is not None:
            calm = min(calm, thinking.calm(self.rules, state) or calm)
        self.calm_until = len(self.ids) + calm
        self.stale = True

    def next_forced(self) -> int | None:
        """The token that must come next, if one must. Begins the cut of a thought that has reached its limit."""
        if self.forced_next < len(self.forced):
            return self.forced[self.forced_next]
        state = self.think
        if state is None or self.rules is None:
            return None
        if not state.queue:
            state = self.think_seen = thinking.settle(self.rules, state)
        return state.queue[0] if state.queue else None

    def resolve(self, token: int) -> int:
        """The token to emit where `token` was sampled: the closer, where the model would end its turn in a thought."""
        state = self.think
        if state is None or self.rules is None:
            return token
        state = thinking.intercept(self.rules, state, token)
        return state.queue[0] if state.queue else token

    def take(self, token: int, logprob: Logprob | None = None, *, forced: bool = False) -> None:
        """Take the next token, sampled or forced, and all that are known to follow it."""
        if len(self.ids) + 1 < self.calm_until and token not in self.watch:
            self.ids.append(token)
            return
        if forced:
            self.accept_forced(token, logprob)
        else:
            self.accept(token, logprob)
        self.drain_forced()
        self.look_ahead()

    def accept(self, token: int, logprob: Logprob | None = None) -> None:
        """Take a sampled token, already resolved or not, and end the sequence if that is the word to end on."""
        state = self.think
        if state is not None and self.rules is not None:
            state = self.think_seen = thinking.intercept(self.rules, state, token)
            if state.queue:
                token = state.queue[0]
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
        state = self.think
        return state is None or not state.fresh

    def _append(self, token: int) -> None:
        inert = False
        state = self.think
        self.ids.append(token)
        if state is not None and self.rules is not None:
            inert = thinking.inert(state)
            self.think_seen = thinking.advance(self.rules, state, token)
            self.think_length = len(self.ids)
        if self.edits is not None:
            self.edits.count(token)
        if not inert and token in self.stops:
            self.finish = "stop"
            self.stop_id = token
        elif len(self.ids) - self.prompt_tokens >= self.sampling.max_tokens:
            self.finish = "length"
