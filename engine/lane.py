"""One model inside the engine: its scheduler, block pool and runner, and what a step does with them."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

from . import thinking
from .arbiter import LaneLoad
from .batch import Runner
from .block_pool import BlockPool, Chain, Digest, PrefixRoot
from .build_batch import build_batch
from .config import LaneConfig
from .edits import Edits
from .messages import FailCode, Failed, Finished, FinishReason, Generate, LaneInfo, LaneStats, Tokens
from .sampler import Choice, choose
from .scheduler import Scheduler, Work
from .sequence import Sequence

log = logging.getLogger(__name__)

Update = Tokens | Finished | Failed


@dataclass(frozen=True, slots=True)
class Outcome:
    """A message about a sequence; `Finished` and `Failed` mean that the lane has forgotten it."""

    sequence: Sequence
    update: Update


class Lane:
    """Owns its scheduler (with the block pool) and its runner. Not thread-safe; never raises for a sequence's sake."""

    def __init__(self, config: LaneConfig, runner: Runner, *, digest: Digest, clock: Callable[[], float]) -> None:
        facts = runner.facts
        self.config = config
        context = min(config.context or facts.context, facts.context, runner.blocks * runner.block_size)
        self.info = LaneInfo(
            name=config.name,
            model=config.model,
            context=context,
            vocab=facts.vocab,
            eos=facts.eos,
            dtype="bf16" if config.precision == "auto" else config.precision,
            blocks=runner.blocks,
            block_size=runner.block_size,
            experts=facts.experts,
            experts_per_token=facts.experts_per_token,
        )
        self._runner = runner
        self._digest = digest
        self._clock = clock
        self._scheduler = self._new_scheduler()
        self._orders = 0
        self._ready: list[Sequence] = []
        """New sequences with tokens to announce, or an end, before any step."""
        self._passed_over = 0
        self._stepped_at = clock()
        self._steps = self._prompt_tokens = self._generated_tokens = 0
        self._lost_preemptions = self._lost_cached_tokens = 0
        """Of schedulers thrown away."""
        self._busy_seconds = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self._ready) or self._scheduler.waiting + self._scheduler.running > 0

    @property
    def full(self) -> bool:
        return self._scheduler.full

    def load(self) -> LaneLoad:
        """What the arbiter wants to know, now."""
        scheduler = self._scheduler
        now = self._clock()
        waited = now - self._stepped_at if scheduler.running else 0.0
        if scheduler.oldest_waiting is not None:
            waited = max(waited, now - scheduler.oldest_waiting)
        filled = max(scheduler.gap / self.config.max_batch_tokens, scheduler.running / len(scheduler.tables))
        return LaneLoad(self.has_work, min(1.0, filled), self.config.weight, waited, self._passed_over)

    def pass_over(self) -> None:
        """Another lane's turn while this one had work."""
        self._passed_over += 1

    def add(self, client: bytes, request: Generate, seed: int) -> Sequence:
        """Queue a request that `find_fault` has nothing against; `seed` is used if it names none."""
        params = request.sampling
        info = self.info
        sequence = Sequence(
            client=client,
            id=request.id,
            order=self._orders,
            priority=request.priority,
            ids=array("q", request.token_ids),
            prompt_tokens=len(request.token_ids),
            sampling=params,
            seed=seed if params.seed is None else params.seed,
            eos=info.eos,
            stops=frozenset(params.stop_token_ids if params.ignore_eos else (*info.eos, *params.stop_token_ids)),
            chain=Chain(PrefixRoot(request.salt, f"{info.model}@{self.config.precision}")),
            edits=Edits.of(params),
            forced=request.forced,
            store=request.store,
            arrived=self._clock(),
        )
        sequence.sent = sequence.prompt_tokens
        if request.think is not None:
            sequence.rules = thinking.make_rules(request.think, info.eos, params.max_tokens)
            sequence.think = thinking.start(sequence.rules)
        self._orders += 1
        self._prompt_tokens += sequence.prompt_tokens
        sequence.drain_forced()
        if len(sequence.ids) > sequence.sent:
            self._ready.append(sequence)
        if sequence.finish is None:
            self._scheduler.add(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> Outcome:
        """Stop a sequence that has not ended, whatever it is doing."""
        self._forget(sequence)
        return Outcome(sequence, self._finished(sequence, "abort"))

    def step(self) -> list[Outcome]:
        """One forward pass, at most, and what came of it."""
        began = self._clock()
        outcomes: list[Outcome] = []
        self._announce(outcomes)
        try:
            self._step(outcomes)
        except Exception:
            # Not the model's doing (`_choose` answers for that) but ours: the books cannot be trusted any more.
            log.exception("lane %s: step failed, all its sequences are lost", self.config.name)
            self._reset(outcomes)
        self._steps += 1
        self._passed_over = 0
        self._stepped_at = self._clock()
        self._busy_seconds += self._stepped_at - began
        return outcomes

    def stats(self) -> LaneStats:
        scheduler = self._scheduler
        pool = scheduler.pool
        return LaneStats(
            running=scheduler.running,
            waiting=scheduler.waiting,
            free=pool.free,
            cached=pool.cached,
            active=pool.active,
            blocks=pool.blocks,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            cached_tokens=self._lost_cached_tokens + scheduler.cached_tokens,
            preemptions=self._lost_preemptions + scheduler.preemptions,
            busy_seconds=self._busy_seconds,
        )

    def check(self) -> None:
        """Verify the books. Raises AssertionError."""
        self._scheduler.check()

    def audit(self) -> list[Outcome]:
        """Verify the books when there is time; where they are wrong, start new ones and lose what ran."""
        outcomes: list[Outcome] = []
        try:
            self.check()
        except AssertionError:
            log.exception("lane %s: the block pool's books are wrong, starting new ones", self.config.name)
            self._reset(outcomes)
        return outcomes

    def _step(self, outcomes: list[Outcome]) -> None:
        step = self._scheduler.begin()
        for sequence in step.impossible:
            outcomes.append(self._fail(sequence, "too_long", "the sequence no longer fits the KV cache"))
        if not step.work:
            return
        choices, broken = self._choose(step.work)
        for work in broken:
            outcomes.append(self._fail(work.sequence, "internal", "the model failed on this sequence"))
        self._scheduler.advance(tuple(work for work in step.work if work not in broken) if broken else step.work)
        for sequence, choice in choices:
            self._accept(sequence, choice, outcomes)

    def _choose(self, work: Rows[Work]) -> tuple[list[tuple[Sequence, Choice]], list[Work]]:
        """Run the model and choose tokens. What cannot run together is run one by one, to find whose fault it is.

        Running again is safe: keys and values are written to the same slots, and no sequence has changed.
        """
        try:
            return self._run(work), []
        except Exception as why:
            if len(work) == 1:
                log.exception("lane %s: the model failed on a sequence", self.config.name)
                return [], [work[0]]
            log.warning("lane %s: a step failed (%s), trying its sequences one by one", self.config.name, why)
        choices: list[tuple[Sequence, Choice]] = []
        broken: list[Work] = []
        for item in work:
            some, failed = self._choose((item,))
            choices += some
            broken += failed
        return choices, broken

    def _run(self, work: Rows[Work]) -> list[tuple[Sequence, Choice]]:
        batch = build_batch(work, self._scheduler.tables, self.info.block_size)
        logits = self._runner.forward(batch)
        sequences = [item.sequence for item in work if item.wants_logits]
        if not sequences:
            return []
        return list(zip(sequences, choose(logits, sequences), strict=True))

    def _accept(self, sequence: Sequence, choice: Choice, outcomes: list[Outcome]) -> None:
        if choice.token is None:
            self._scheduler.distrust(sequence)
            outcomes.append(self._fail(sequence, "numeric", "the model gave logits that are not numbers"))
            return
        if choice.forced:
            sequence.accept_forced(choice.token, choice.logprob)
        else:
            sequence.accept(choice.token, choice.logprob)
        sequence.drain_forced()
        self._tell(sequence, outcomes)

    def _announce(self, outcomes: list[Outcome]) -> None:
        ready, self._ready = self._ready, []
        for sequence in ready:
            self._tell(sequence, outcomes)

    def _tell(self, sequence: Sequence, outcomes: list[Outcome]) -> None:
        """Send the tokens not sent yet, and the end if this is it."""
        fresh = sequence.ids[sequence.sent :].tolist()
        self._generated_tokens += len(fresh)
        sequence.sent = len(sequence.ids)
        logprobs = None
        if sequence.sampling.logprobs is not None:
            logprobs, sequence.logprobs = sequence.logprobs, []
        outcomes.append(Outcome(sequence, Tokens(sequence.id, fresh, logprobs)))
        if sequence.finish is not None:
            self._forget(sequence)
            outcomes.append(Outcome(sequence, self._finished(sequence, sequence.finish)))

    def _finished(self, sequence: Sequence, reason: FinishReason) -> Finished:
        return Finished(
            id=sequence.id,
            reason=reason,
            stop_id=sequence.stop_id,
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=sequence.cached_tokens or 0,
            completion_tokens=sequence.sent - sequence.prompt_tokens,
            thinking_tokens=sequence.thinking_tokens,
            forced_tokens=sequence.forced_tokens,
            preemptions=sequence.preemptions,
        )

    def _fail(self, sequence: Sequence, code: FailCode, message: str) -> Outcome:
        self._forget(sequence)
        completion = sequence.sent - sequence.prompt_tokens
        failed = Failed(
            id=sequence.id,
            code=code,
            message=message,
            completion_tokens=completion,
            prompt_tokens=sequence.prompt_tokens,
        )
        return Outcome(sequence, failed)

    def _forget(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        sequence.status = "done"
        if sequence in self._ready:
            self._ready.remove(sequence)

    def _reset(self, outcomes: list[Outcome]) -> None:
        told = {id(outcome.sequence) for outcome in outcomes if not isinstance(outcome.update, Tokens)}
        lost = [sequence for sequence in self._scheduler if id(sequence) not in told]
        self._lost_preemptions += self._scheduler.preemptions
        self._lost_cached_tokens += self._scheduler.cached_tokens
        self._scheduler = self._new_scheduler()
        self._ready = []
        why = "the engine failed while it ran this sequence"
        outcomes += [self._fail(sequence, "internal", why) for sequence in lost]

    def _new_scheduler(self) -> Scheduler:
        runner, config = self._runner, self.config
        pool = BlockPool(runner.blocks, runner.block_size, digest=self._digest, caching=config.prefix_cache)
        return Scheduler(
            pool,
            budget=config.max_batch_tokens,
            max_running=config.max_sequences,
            max_waiting=config.max_waiting,
            max_blocks=-(-self.info.context // runner.block_size),
        )
