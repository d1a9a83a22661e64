"""One model inside the engine: its scheduler, block pool and runner, and what a step does with them."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Rows

from . import thinking
from .arbiter import LaneLoad
from .batch import Runner, StepRunner
from .block_pool import BlockPool, Chain, Digest, PrefixRoot
from .config import LaneConfig
from .decode_rows import DecodeRows
from .drafting import Drafting
from .edits import Edits
from .last_words import failed, finished
from .latency import LatencyModel, Shape, with_chunk
from .messages import FailCode, Generate, LaneInfo, LaneStats, Tokens
from .native_step import MAX_REPEAT, NativeStep
from .outbox import Outbox
from .pace import Pace
from .sampler import Choice
from .scheduler import Scheduler, Work, shape_of
from .sequence import Sequence
from .speculate import accept
from .step_buffers import NUMERIC
from .step_times import StepTimes
from .tiering.open import open_tiers
from .torch_step import TorchStep

CALL_SECONDS = 0.02
"""Most that a call of the runner should last: so often streams are written to, and new requests looked at, at least."""
NOT_NUMBERS = "the model gave logits that are not numbers"

log = logging.getLogger(__name__)


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
            dtype=facts.precision,
            blocks=runner.blocks,
            block_size=runner.block_size,
            experts=facts.experts,
            experts_per_token=facts.experts_per_token,
        )
        self._runner = runner
        self._digest = digest
        self._clock = clock
        self._orders = 0
        self._ready: list[Sequence] = []
        """New sequences with tokens to announce, or an end, before any step."""
        self._passed_over = 0
        self._stepped_at = clock()
        self._steps = self._prompt_tokens = self._generated_tokens = 0
        self._lost_preemptions = self._lost_cached_tokens = 0
        """Of schedulers thrown away."""
        self._busy_seconds = 0.0
        self._times = StepTimes(LatencyModel(facts.kv_bytes_per_token), clock)
        # Only a native step computes a row to the same bits whatever is beside it, so that drafts change no answer.
        self._drafting = Drafting() if config.drafting and isinstance(runner, StepRunner) else None
        self._planning = 0.0
        """Seconds that a step takes besides the runner when it is planned, a running average."""
        self._tiers = open_tiers(config, runner, self._seconds_of_block, clock)
        self._start_afresh()

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
        model, most = self._times.model, self.config.max_batch_tokens
        rows = max(1, scheduler.gap)
        use = model.utilisation(Shape(rows, scheduler.context), most) if model.known else rows / most
        return LaneLoad(self.has_work, use, self.config.weight, waited, self._passed_over)

    def pass_over(self) -> None:
        """Another lane's turn while this one had work."""
        self._passed_over += 1

    def add(self, client: bytes, request: Generate, seed: int) -> Sequence:
        """Queue a request that `find_fault` has nothing against; `seed` is used if it names none."""
        params, think = request.sampling, request.think
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
            rules=None if think is None else thinking.make_rules(think, info.eos, params.max_tokens),
        )
        self._orders += 1
        self._prompt_tokens += sequence.prompt_tokens
        if len(sequence.ids) > sequence.sent:
            self._ready.append(sequence)
        if sequence.finish is None:
            self._scheduler.add(sequence)
        return sequence

    def abort(self, sequence: Sequence, outbox: Outbox) -> None:
        """Stop a sequence that has not ended, whatever it is doing."""
        self._forget(sequence)
        outbox.end(sequence, finished(sequence, "abort"))

    def step(self, outbox: Outbox, wake: int | None = None) -> None:
        """One forward pass, at most, and what came of it.

        With `wake`, a file descriptor or -1, it may be several in one call of the runner, ended early when `wake` is
        readable.
        """
        began = self._clock()
        self._announce(outbox)
        self._steps += 1
        try:
            most = min(1 if wake is None else self._most_tokens(), self._draft())
            if most == 0 or not self._carry_on(outbox, most, wake):
                self._step_anew(outbox)
        except Exception:
            # Not the model's doing (`_choose` answers for that) but ours: the books cannot be trusted any more.
            log.exception("lane %s: step failed, all its sequences are lost", self.config.name)
            self._reset(outbox)
        self._passed_over = 0
        self._stepped_at = self._clock()
        self._busy_seconds += self._stepped_at - began

    def stats(self) -> LaneStats:
        scheduler = self._scheduler
        pool, facts = scheduler.pool, self._runner.facts
        return LaneStats(
            precision=facts.precision,
            threads=facts.threads,
            kernels=dict(facts.kernels),
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
            calls=self._times.calls,
            runner_seconds=self._times.seconds,
            predicted_seconds=self._times.predicted,
            drafted_tokens=0 if self._drafting is None else self._drafting.drafted,
            accepted_tokens=0 if self._drafting is None else self._drafting.right,
            host_blocks=0 if self._tiers is None else self._tiers.host_blocks,
            stored_blocks=0 if self._tiers is None else self._tiers.stored_blocks,
            restored_blocks=0 if self._tiers is None else self._tiers.counts.restored,
        )

    def close(self) -> None:
        """Store what a later process can use. Nothing may be asked of the lane any more."""
        if self._tiers is not None:
            self._tiers.close(self._scheduler.pool.idle_contents())

    def check(self) -> None:
        """Verify the books. Raises AssertionError."""
        self._scheduler.check()

    def audit(self, outbox: Outbox) -> None:
        """Verify the books when there is time; where they are wrong, start new ones and lose what ran."""
        try:
            self.check()
        except AssertionError:
            log.exception("lane %s: the block pool's books are wrong, starting new ones", self.config.name)
            self._reset(outbox)

    def _draft(self) -> int:
        """Give drafts to those who decode: then 0, else how many tokens they may draw before it is tried again."""
        model = self._times.model
        if self._drafting is None or not model.known:
            return MAX_REPEAT
        sequences = self._scheduler.decoders()
        if not sequences:
            return MAX_REPEAT
        context = self._scheduler.context
        calm = self._drafting.propose(sequences, lambda rows: model.predict(Shape(rows, context)), self._planning)
        if calm == 0:
            self._scheduler.break_off()
        return calm

    def _carry_on(self, outbox: Outbox, most: int, wake: int | None) -> bool:
        """The usual case: everyone decodes, and nothing has to be planned. False, with nothing done, when it is not.

        Up to `most` tokens of each sequence are drawn.
        """
        native = self._native
        if native is None:
            return False
        plan = self._scheduler.carry_on(most)
        if plan is None:
            return False
        rows, count = plan
        shape = Shape(len(rows), rows.context)
        self._times.begin()
        try:
            drawn = native.decode(rows, count, -1 if wake is None else wake)
        except Exception as why:
            log.warning("lane %s: decoding failed (%s), trying again step by step", self.config.name, why)
            self._scheduler.break_off()
            return False
        count = len(drawn[0])
        self._times.end(shape, count)
        self._steps += count - 1
        self._take(rows, drawn, outbox)
        return True

    def _most_tokens(self) -> int:
        """How many tokens of each sequence may be drawn before anyone hears of them."""
        model, scheduler = self._times.model, self._scheduler
        if not model.known or not scheduler.running:
            return 1
        return min(MAX_REPEAT, model.most_steps(Shape(scheduler.running, scheduler.context), CALL_SECONDS))

    def _take(self, rows: DecodeRows, drawn: list[list[int]], outbox: Outbox) -> None:
        """Give everyone the tokens drawn, all but the last of which are calm."""
        count = len(drawn[0])
        rows.advance(count)
        client: bytes | None = None
        anew: list[int] = []
        told = 0
        for index, sequence in enumerate(rows.sequences):
            fresh = drawn[index]
            length = len(sequence.ids) + count
            if length >= sequence.calm_until or length >= sequence.fills_at or fresh[-1] in sequence.watch:
                self._look(sequence, fresh, outbox)
                if sequence.stale:
                    anew.append(index)
                continue
            sequence.ids.extend(fresh)
            sequence.computed += count
            sequence.sent = length
            if sequence.client is not client:
                client = sequence.client
                replies = outbox.to(client)
            replies.append(Tokens(sequence.id, fresh))
            told += count
        self._generated_tokens += told
        if anew and self._scheduler.decodes(rows):
            rows.refresh(anew)
            assert self._native is not None
            self._native.refresh(rows, anew)

    def _look(self, sequence: Sequence, fresh: list[int], outbox: Outbox) -> None:
        """Take tokens of which the last may mean something, or with which a block is full."""
        token = fresh.pop()
        sequence.ids.extend(fresh)
        computed = len(sequence.ids)
        if token == NUMERIC:
            if fresh:
                self._tell(sequence, outbox)
            self._scheduler.distrust(sequence)
            self._fail(sequence, "numeric", NOT_NUMBERS, outbox)
            return
        sequence.take(token)
        self._scheduler.advance(sequence, computed)
        if sequence.wanted - computed != 1:
            self._scheduler.break_off()
        self._tell(sequence, outbox)

    def _step_anew(self, outbox: Outbox) -> None:
        """Plan a step and take it, and learn what that costs beside the runner."""
        began, running = self._clock(), self._times.seconds
        self._step(outbox)
        spent = self._clock() - began - (self._times.seconds - running)
        # A moment in which the machine did something else must not count for many steps.
        self._planning += (min(spent, 2 * self._planning + 1e-4) - self._planning) / 8

    def _step(self, outbox: Outbox) -> None:
        step = self._scheduler.begin()
        for sequence in step.impossible:
            self._fail(sequence, "too_long", "the sequence no longer fits the KV cache", outbox)
        if not step.work:
            return
        choices, broken = self._choose(step.work)
        for work in broken:
            self._fail(work.sequence, "internal", "the model failed on this sequence", outbox)
        for work, chosen in choices:
            if chosen:
                self._accept(work, chosen, outbox)
            else:
                self._scheduler.advance(work.sequence, work.start + work.length)

    def _choose(self, work: Rows[Work]) -> tuple[list[tuple[Work, list[Choice]]], list[Work]]:
        """Run the model and choose tokens. What cannot run together is run one by one, to find whose fault it is."""
        self._times.begin()
        try:
            choices = self._runs.run(work)
        except Exception as why:
            if len(work) == 1:
                log.exception("lane %s: the model failed on a sequence", self.config.name)
                return [], [work[0]]
            log.warning("lane %s: a step failed (%s), trying its sequences one by one", self.config.name, why)
        else:
            self._times.end(shape_of(work))
            return list(zip(work, choices, strict=True)), []
        chosen: list[tuple[Work, list[Choice]]] = []
        broken: list[Work] = []
        for item in work:
            some, faulty = self._choose((item,))
            chosen += some
            broken += faulty
        return chosen, broken

    def _accept(self, work: Work, chosen: list[Choice], outbox: Outbox) -> None:
        """Take what was chosen, as far as the drafts that it was computed with turn out to be right."""
        sequence, drafts = work.sequence, work.sequence.drafts
        sequence.drafts = ()
        known = len(sequence.ids)
        taken = 0
        for choice in chosen[: accept(drafts, [choice.token for choice in chosen])]:
            if choice.token is None:
                break
            sequence.take(choice.token, choice.logprob, forced=choice.forced)
            taken += 1
            if sequence.finish is not None:
                break
        if self._drafting is not None and len(chosen) > 1:
            self._drafting.learn(sequence, len(chosen) - 1, max(0, taken - 1))
        if not taken:
            self._scheduler.distrust(sequence)
            self._fail(sequence, "numeric", NOT_NUMBERS, outbox)
            return
        self._scheduler.advance(sequence, known + taken - 1)
        self._tell(sequence, outbox)

    def _announce(self, outbox: Outbox) -> None:
        ready, self._ready = self._ready, []
        for sequence in ready:
            self._tell(sequence, outbox)

    def _tell(self, sequence: Sequence, outbox: Outbox) -> None:
        """Send the tokens not sent yet, and the end if this is it."""
        fresh = sequence.ids[sequence.sent :].tolist()
        sequence.sent = len(sequence.ids)
        logprobs = None
        if sequence.sampling.logprobs is not None:
            logprobs, sequence.logprobs = sequence.logprobs, []
        outbox.to(sequence.client).append(Tokens(sequence.id, fresh, logprobs))
        self._generated_tokens += len(fresh)
        if sequence.finish is not None:
            self._forget(sequence)
            outbox.end(sequence, finished(sequence, sequence.finish))

    def _fail(self, sequence: Sequence, code: FailCode, message: str, outbox: Outbox) -> None:
        self._forget(sequence)
        outbox.end(sequence, failed(sequence, code, message))

    def _forget(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        if self._drafting is not None:
            self._drafting.forget(sequence)
        sequence.status = "done"
        if sequence in self._ready:
            self._ready.remove(sequence)

    def _reset(self, outbox: Outbox) -> None:
        lost = tuple(self._scheduler)
        self._lost_preemptions += self._scheduler.preemptions
        self._lost_cached_tokens += self._scheduler.cached_tokens
        self._start_afresh()
        self._ready = []
        for sequence in lost:
            if sequence.status != "done":
                self._fail(sequence, "internal", "the engine failed while it ran this sequence", outbox)

    def _seconds_of_block(self, number: int, tokens: int) -> float | None:
        """What computing `tokens` tokens of a prompt behind `number` as long pieces is predicted to take."""
        model, most = self._times.model, self.config.max_batch_tokens
        if not model.known:
            return None
        return model.predict(with_chunk(Shape(0), number * tokens, most)) * tokens / most

    def _start_afresh(self) -> None:
        """A scheduler with nobody in it, and steps on its tables."""
        runner, config = self._runner, self.config
        pool = BlockPool(
            runner.blocks,
            runner.block_size,
            digest=self._digest,
            caching=config.prefix_cache,
            spill=self._tiers,
        )
        self._scheduler = Scheduler(
            pool,
            budget=config.max_batch_tokens,
            max_running=config.max_sequences,
            max_waiting=config.max_waiting,
            max_blocks=-(-self.info.context // runner.block_size),
            pace=Pace(self._times.model, config.itl_target, config.max_latency),
            tiers=self._tiers,
        )
        tables = self._scheduler.tables
        self._native = NativeStep(runner, tables, config.max_batch_tokens) if isinstance(runner, StepRunner) else None
        self._runs = self._native or TorchStep(runner, tables)
