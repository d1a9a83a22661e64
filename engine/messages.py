"""What crosses the socket between a gateway process and an engine process.

Every frame is one msgpack-encoded *list* of messages: `Command`s towards the engine, `Reply`s back. A list a step and
client, not a frame a token, keeps the cost of the socket flat as streams grow. Everything here is frozen, torch-free
and safe to decode from an untrusted peer (never pickle).
"""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort"]
"""`stop`: an end-of-sequence or stop token; `length`: `max_tokens` or the context ran out; `abort`: asked to stop."""


CHARACTER_GRACE = 3
"""Tokens that a cut may wait for the end of a character: UTF-8 takes at most 4 bytes."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the tokens of one sequence are chosen. The engine checks ranges and answers `Failed("invalid")`.

    Order of application: penalties, `logit_bias`, bans (`min_tokens`), temperature, top-k, top-p, min-p, draw.
    Penalties count *generated* tokens only, thinking included; the prompt is never penalised.
    """

    max_tokens: int
    """Most tokens to generate, thinking and forced tokens included; >= 1."""
    temperature: float = 1.0
    """0 is greedy (the lowest id wins a tie); else > 0."""
    top_p: float = 1.0
    """Nucleus mass in (0, 1]."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than `min_p` times the likeliest, in [0, 1]."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """> 1 divides positive and multiplies negative logits of tokens already generated (CTRL, arXiv 1909.05858)."""
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    """Any int64. Draws depend on (seed, position) alone, never on the batch. None: the engine picks one."""
    stop_token_ids: tuple[int, ...] = ()
    """End the sequence, besides the model's own end-of-sequence ids. Inert inside thinking."""
    min_tokens: int = 0
    """End-of-sequence and stop tokens are banned until this many tokens were generated."""
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: none. n in 0..20: each token's log-probability and its n likeliest rivals, from the raw logits."""


class ThinkLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The thinking budget of one sequence, in tokens strictly between the markers; markers are not counted.

    One budget a turn: blocks opened by the prompt, by the model, or opened again all draw on it.
    """

    closers: tuple[tuple[int, ...], ...]
    """Token id sequences that end thinking; the first is the one that is forced."""
    openers: tuple[tuple[int, ...], ...] = ()
    """Token id sequences that begin it."""
    implicit_closers: tuple[tuple[int, ...], ...] = ()
    """Sequences that end thinking by starting something else (a tool call); never cut."""
    open: bool = False
    """The prompt leaves a block open, so the first generated token is already thinking."""
    hard: int | None = None
    """At this many thinking tokens `handoff` and then `closers[0]` are forced. 0 closes at once. None: no limit."""
    soft: int | None = None
    """An aim: nearing it the closer is made likelier (0.85 of it on). None: no aim."""
    handoff: tuple[int, ...] = ()
    """Tokens of the sentence that leads from a cut thought to the answer; forced before the closer, not counted."""
    after: tuple[int, ...] = ()
    """Tokens forced right behind a *forced* closer (a template's blank line)."""
    answer_reserve: int = 0
    """Tokens of `max_tokens` kept for the answer: thinking is cut earlier rather than the answer shortened."""
    partial: dict[int, int] = {}
    """Tokens that end inside a character, and how many of its bytes are still to come. A cut waits for those, at most
    `CHARACTER_GRACE` tokens, which are counted."""
    continuing: dict[int, int] = {}
    """Tokens that are nothing but bytes from inside a character, and how many."""
    call_closers: tuple[tuple[int, ...], ...] = ()
    """Sequences that end what an implicit closer began; until then, or for good when empty, markers are data."""


class Generate(msgspec.Struct, frozen=True, tag="generate", kw_only=True, omit_defaults=True):
    """Start one sequence. Ids are unique within a client; a live id used again is `Failed("invalid")`."""

    id: str
    lane: str
    token_ids: list[int]
    """The prompt, 1 or more ids of the lane's vocabulary; together with `max_tokens` within its context."""
    sampling: SamplingParams
    think: ThinkLimit | None = None
    forced: tuple[int, ...] = ()
    """Tokens to emit first, as if the model had chosen them."""
    salt: str = ""
    """Root of the prefix cache key: sequences of different salts never share a block."""
    store: bool = True
    """False keeps this sequence's blocks out of the prefix cache."""
    priority: int = 0
    """Higher is served first and preempted last."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Stop a sequence in whatever state; answered by `Finished(reason="abort")`, unknown ids are ignored."""

    id: str


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First word of a client, and its heartbeat after. `Ready` answers the first. A silent client's work is aborted."""


class Inspect(msgspec.Struct, frozen=True, tag="inspect"):
    """Ask for `Stats`."""


Command = Generate | Abort | Hello | Inspect


class LaneInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a client must know of a lane."""

    name: str
    model: str
    context: int
    """Most tokens of prompt and answer together that a sequence may hold here."""
    vocab: int
    eos: tuple[int, ...]
    dtype: str
    blocks: int
    block_size: int
    experts: int = 0
    """Routed experts a layer; 0 for a dense model."""
    experts_per_token: int = 0


class Ready(msgspec.Struct, frozen=True, tag="ready", kw_only=True):
    pid: int
    lanes: dict[str, LaneInfo]


class Logprob(msgspec.Struct, frozen=True, array_like=True):
    """`logprob` of the chosen token, natural log, and (id, logprob) of its likeliest rivals, best first."""

    logprob: float
    top: list[tuple[int, float]]


class Tokens(msgspec.Struct, frozen=True, tag="tokens", omit_defaults=True):
    """New tokens of a sequence, in order; `logprobs` has one entry a token when asked for."""

    id: str
    ids: list[int]
    logprobs: list[Logprob] | None = None


class Finished(msgspec.Struct, frozen=True, tag="finished", kw_only=True, omit_defaults=True):
    """The last word on a sequence that ended in order. Counts are the engine's own, the ones to bill."""

    id: str
    reason: FinishReason
    stop_id: int | None = None
    """The token that ended it (already sent in `Tokens`), when `reason` is `stop`."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when it was first scheduled."""
    completion_tokens: int = 0
    thinking_tokens: int = 0
    """Of the completion: inside thinking, markers and forced hand-off included."""
    forced_tokens: int = 0
    preemptions: int = 0


FailCode = Literal["invalid", "too_long", "busy", "numeric", "unknown_lane", "internal"]


class Failed(msgspec.Struct, frozen=True, tag="failed", kw_only=True, omit_defaults=True):
    """The last word on a sequence that did not. The engine and every other sequence go on."""

    id: str
    code: FailCode
    message: str
    completion_tokens: int = 0
    prompt_tokens: int = 0


class LaneStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot; counters only grow. `free + cached + active == blocks`."""

    precision: str = ""
    """Of the weights, as they are computed with."""
    threads: int = 0
    """Compute threads of the native core; 0 where PyTorch runs the lane."""
    kernels: dict[str, str] = {}
    """The native core's kernels and the level of instruction sets that each runs at: scalar, avx2, avx512 or amx."""

    running: int
    waiting: int
    free: int
    cached: int
    active: int
    blocks: int
    steps: int
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    preemptions: int
    busy_seconds: float
    calls: int = 0
    """Of the runner. A call may take several steps."""
    runner_seconds: float = 0.0
    """Of the busy ones, those spent in the runner; what is left is the engine's own work."""
    predicted_seconds: float = 0.0
    """What the step-time model had predicted for those."""
    drafted_tokens: int = 0
    """Guessed and verified."""
    accepted_tokens: int = 0
    """Of these, the ones that were right."""
    host_blocks: int = 0
    """KV blocks in host memory, outside of the cache."""
    stored_blocks: int = 0
    """KV blocks on disk."""
    restored_blocks: int = 0
    """KV blocks that were put back instead of being computed again."""


class Stats(msgspec.Struct, frozen=True, tag="stats", kw_only=True):
    lanes: dict[str, LaneStats]


Reply = Ready | Tokens | Finished | Failed | Stats
