"""The flow of one request, from its bytes to its answer and the books: the same for every dialect.

Plain ASGI, because this is where the requests are: no router, no middleware, no response objects.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from starlette.types import Receive, Scope, Send

from tiergate.budget import Grant, Limits, Spent, Tenant
from tiergate.tiers import ChatRequest, Start, Usage, run_cascade

from . import observe, route
from .auth import identify
from .body import INLINE_BYTES, check_content_type, check_encoding, parse_object
from .call import Call, choice_seed
from .classify import classify
from .dialect import Dialect, Writer
from .direct import Direct, direct_of
from .errors import BodyTooLarge, ClientGone, Draining, Problem, ShuttingDown, SlowReader, describe
from .plan import Plan, make_plan, within
from .record import Record
from .relay import Batch, Relay
from .reply import RawHeaders, Reply
from .service import Service
from .sse import KEEP_ALIVE

Outcome = Literal["ok", "cancelled", "failed"]

MEASURED_EVERY = 256
"""Events between two words to the books about what a running answer has cost so far."""


class ChatEndpoint:
    """Answers POST requests of one dialect; an ASGI application."""

    def __init__(self, service: Callable[[], Service], dialect: Dialect) -> None:
        """`service` gives what is open, from the first request on."""
        self._open = service
        self._dialect = dialect
        # Ids must differ, not be secret, and the system's generator costs a system call.
        self._random = random.Random()

    @property
    def _service(self) -> Service:
        return self._open()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        record = Record(id=f"req_{self._random.getrandbits(96):024x}")
        direct = direct_of(scope)
        reply = Reply(send, id=record.id, stall=service.settings.server.stall, direct=direct)
        problem: Problem | None = None
        failure: BaseException | None = None
        try:
            await self._serve(dict(scope["headers"]), Client(receive, direct), reply, record)
        except (ClientGone, SlowReader) as error:
            # Nobody is left to be told. A stream that was not finished makes the server close the connection.
            failure, problem = error, describe(error)
            record.status = problem.status
        except asyncio.CancelledError as error:
            failure, problem = error, describe(ShuttingDown("cancelled"))
            if not reply.begun:
                await self._fail(reply, problem, record)
            raise
        except Exception as error:
            failure, problem = error, describe(error)
            await self._fail(reply, problem, record)
        finally:
            reply.close()
            record.seconds = reply.seconds
            observe.ended(service.metrics, record, problem, failure)

    async def _fail(self, reply: Reply, problem: Problem, record: Record) -> None:
        if reply.ended:
            # Only our own books can have failed behind the last byte; the log has it.
            return
        if reply.begun:
            try:
                await reply.part(self._dialect.error_event(problem), last=True)
            except SlowReader:
                return
        else:
            record.status = problem.status
            await reply.whole(problem.status, self._dialect.error(problem), problem.headers)

    async def _serve(self, headers: dict[bytes, bytes], client: Client, reply: Reply, record: Record) -> None:
        service = self._service
        if service.draining:
            raise Draining
        tenant = identify(service.keys, headers)
        record.tenant = tenant.id
        check_content_type(headers.get(b"content-type"))
        check_encoding(headers.get(b"content-encoding"))
        limit = service.settings.server.body_limit
        raw = client.body(limit)
        if raw is None:
            raw = await service.reading.read(client.receive, headers.get(b"content-length"), limit)
        service.metrics.began(record)
        inline = len(raw) <= INLINE_BYTES
        call = self._read(raw, tenant) if inline else await asyncio.to_thread(self._read, raw, tenant)
        record.asked, record.stream, record.choices = call.request.model[:100], call.stream, call.choices
        plan = await self._plan(call, tenant, record)
        grant = await service.ledger.reserve(tenant, plan.ask)
        outcome: Outcome = "failed"
        try:
            plan = await within(plan, call.request, grant.limits)
            record.thinking = grant.limits.hard if plan.thinks else 0
            await self._answer(call, plan, grant, client, reply, record)
            outcome = "ok"
        except (ClientGone, SlowReader, asyncio.CancelledError):
            outcome = "cancelled"
            raise
        finally:
            await service.ledger.settle(grant, _spent(record.usage, outcome))

    def _read(self, raw: bytes, tenant: Tenant) -> Call:
        return self._dialect.parse(parse_object(raw), tenant)

    async def _plan(self, call: Call, tenant: Tenant, record: Record) -> Plan:
        service = self._service
        complexity = classify(call.request)
        taken = route.decide(call.request, complexity, service.views(), tenant, service.settings.router)
        record.label, record.score, record.reason = taken.label, taken.score, taken.reason
        record.route = taken.header()
        return await make_plan(call, taken, service.tiers.tiers, tenant)

    async def _answer(self, call: Call, plan: Plan, grant: Grant, client: Client, reply: Reply, record: Record) -> None:
        """Run all choices and write them; their usage is in the record afterwards, however it ends."""
        service = self._service
        server = service.settings.server
        writer = self._dialect.writer(call, id="chatcmpl-" + record.id[4:], created=int(time.time()))
        told = _headers(plan, grant.limits, record)
        relay = Relay(
            [run_cascade(plan.rungs, one, plan.prompt, grant.limits) for one in _choices(call)],
            room=server.stream_buffer * call.choices,
            idle=server.keep_alive if call.stream else None,
        )
        try:
            service.running.add(relay)
            client.when_gone(lambda: relay.abort(ClientGone("disconnected")))
            if call.stream:
                await self._stream(relay, writer, reply, record, told, grant)
            else:
                await self._whole(relay, writer, reply, record, told)
        finally:
            client.forget()
            service.running.discard(relay)
            try:
                await relay.close()
            finally:
                record.usage = relay.usage

    async def _whole(self, relay: Relay, writer: Writer, reply: Reply, record: Record, told: RawHeaders) -> None:
        def write(batch: Batch) -> bool:
            _note(record, batch, reply)
            writer.write(batch)
            return True

        relay.write_with(write)
        while (batch := await relay.take()) is not None:
            write(batch)
        body = writer.end(await relay.close())
        record.status = 200
        await reply.whole(200, body, (*told, *_tier(record)))

    async def _stream(
        self, relay: Relay, writer: Writer, reply: Reply, record: Record, told: RawHeaders, grant: Grant
    ) -> None:
        # Up to here, and until something visible has come, a failure is a plain error response.
        first = await _first(relay)
        _note(record, first, reply)
        record.status = 200
        await reply.stream((*told, *_tier(record)))
        await reply.part(writer.write(first) or KEEP_ALIVE)
        measured = record.events

        def wrote(batch: Batch) -> bytes:
            nonlocal measured
            _note(record, batch, reply)
            if record.events - measured >= MEASURED_EVERY:
                measured = record.events
                self._service.ledger.measure(grant, _spent(relay.usage, "ok"))
            return writer.write(batch)

        def write_now(batch: Batch) -> bool:
            if not reply.ready:
                return False
            reply.part_now(wrote(batch))
            return True

        relay.write_with(write_now)
        while (batch := await relay.take()) is not None:
            await reply.part(wrote(batch) if batch else KEEP_ALIVE)
        await reply.part(writer.end(await relay.close()), last=True)


class Client:
    """Who asks: what is received from them, and when they leave."""

    def __init__(self, receive: Receive, direct: Direct | None) -> None:
        self.receive = receive
        self._direct = direct
        self._watcher: asyncio.Task[None] | None = None

    def body(self, limit: int) -> bytes | None:
        """The request's body where it has come whole; None where it has to be received. Raises `BodyTooLarge`."""
        body = self._direct.body() if self._direct is not None else None
        if body is not None and len(body) > limit:
            raise BodyTooLarge(limit)
        return body

    def when_gone(self, call: Callable[[], None]) -> None:
        """Have `call` called when they leave, until `forget`. Nothing may be received any more."""
        if self._direct is not None:
            self._direct.when_gone(call)
        else:
            self._watcher = asyncio.create_task(self._watch(call))

    def forget(self) -> None:
        if self._direct is not None:
            self._direct.when_gone(_nothing)
        if self._watcher is not None:
            self._watcher.cancel()

    async def _watch(self, call: Callable[[], None]) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        call()


def _nothing() -> None:
    return None


async def _first(relay: Relay) -> Batch:
    """Everything up to the first event that a client can see, or up to the first silence that is too long."""
    gathered: Batch = []
    while batch := await relay.take():
        gathered += batch
        if any(type(event) is not Start for _, event in batch):
            break
    return gathered


def _note(record: Record, batch: Batch, reply: Reply) -> None:
    record.events += len(batch)
    for _, event in batch:
        if type(event) is Start:
            record.tier, record.model = event.tier, event.model
        elif record.first is None:
            record.first = reply.seconds


def _choices(call: Call) -> list[ChatRequest]:
    request = call.request
    if call.choices == 1:
        return [request]
    sampling = request.sampling
    return [
        replace(request, sampling=replace(sampling, seed=choice_seed(sampling.seed, index)))
        for index in range(call.choices)
    ]


def _headers(plan: Plan, limits: Limits, record: Record) -> RawHeaders:
    budget = limits.hard if plan.thinks else 0
    return (
        (b"x-tiergate-route", record.route.encode()),
        (b"x-tiergate-thinking-budget", b"unlimited" if budget is None else b"%d" % budget),
        (b"x-tiergate-thinking-mode", b"hard" if limits.soft is None else b"soft"),
    )


def _tier(record: Record) -> RawHeaders:
    """Not known yet when a stream had to begin before its first event."""
    return ((b"x-tiergate-tier", record.tier.encode()),) if record.tier else ()


def _spent(usage: Usage, outcome: Outcome) -> Spent:
    return Spent(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        thinking_tokens=usage.reasoning_tokens,
        outcome=outcome,
    )
