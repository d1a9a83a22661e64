"""Answers of local tiers, from the engine's socket to the client's: streamed or whole, cut, broken, or too fast."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from fakes.asgi import connected, post, read_response, served, until
from fakes.chat_models import FakeModels, byte_level_tokenizer, write_chat_model
from fakes.engine import FakeEngine, FakeLaunch, Script
from tiergate.budget import Balance, Ledger, TenantSpec, open_store
from tiergate.engine import messages
from tiergate.gateway.app import App, create_app
from tiergate.gateway.config import ServerSpec, Settings
from tiergate.gateway.wire_openai_answer import ChunkWriter
from tiergate.tiers import EngineSpec, Event, Finish, TierSpec, open_tiers

from .conftest import CHAT, ask

EOS = 2
SAID = "Grüße, 日本 😀: a gateway speaks to two tiers, the fast one and the deep one."
TIERS = {"fast": TierSpec(model="m", max_tokens=128), "deep": TierSpec(model="m", max_tokens=128)}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level_tokenizer()


@dataclass(slots=True)
class Home:
    app: App
    ledger: Ledger
    launch: FakeLaunch
    tokenizer: Tokenizer
    url: str = ""
    script: Script = field(default_factory=lambda: Script(ids=[]))
    choose: Callable[[messages.Generate], Script | None] = lambda _: None

    @property
    def engine(self) -> FakeEngine:
        return self.launch.engines[-1]

    def saying(self, text: str = SAID, **options: Any) -> Script:
        return Script(ids=[*self.tokenizer.encode(text).ids, EOS], **options)

    @property
    def idle(self) -> bool:
        return not self.app.service.metrics.active and not self.engine.open_requests

    async def balance(self) -> Balance:
        await self.ledger.check()
        return await self.ledger.balance(self.app.service.keys.tenants[0])

    async def ready(self) -> None:
        tiers = self.app.service.tiers.tiers.values()
        await until(lambda: all(tier.health().ready for tier in tiers))


Open = Callable[..., Any]


@pytest.fixture
def home(tmp_path: Path, tokenizer: Tokenizer) -> Open:
    """Opens a gateway on a socket, over tiers on an engine that plays `script`. Keywords are settings of the server."""

    @asynccontextmanager
    async def opened(
        *, step: float = 0.0, context: int = 2048, day_tokens: int | None = None, **server: Any
    ) -> AsyncIterator[Home]:
        launch = FakeLaunch(
            tokenizer.get_vocab_size(), (EOS,), lambda one: made.choose(one) or made.script, context=context, step=step
        )
        models = FakeModels(write_chat_model(tmp_path / "model", tokenizer))
        tiers = await open_tiers(TIERS, EngineSpec(restart_delay=0.01), models, launch=launch, load_wait=10.0)
        tenants = {"local": TenantSpec(day_tokens=day_tokens)}
        settings = Settings(server=ServerSpec(port=0, **server), tiers=TIERS, tenants=tenants, data=str(tmp_path))
        ledger = Ledger(open_store("sqlite:", folder=tmp_path), sliced=True)
        made = Home(create_app(settings, tiers=tiers, ledger=ledger), ledger, launch, tokenizer)
        made.script = made.saying()
        async with served(made.app, settings.server) as (made.url, _):
            await made.ready()
            yield made

    return opened


def chunks(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def glued(text: str) -> dict[str, Any]:
    """What a stream adds up to, in the shape of a whole answer."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in chunks(text):
        usage = chunk.get("usage") or usage
        for one in chunk["choices"]:
            into = choices.setdefault(one["index"], {"text": "", "logprobs": [], "finish_reason": None})
            into["text"] += one["delta"].get("content") or ""
            into["logprobs"] += (one["logprobs"] or {}).get("content") or []
            assert into["finish_reason"] is None, "nothing follows the end of a choice"
            into["finish_reason"] = one["finish_reason"]
    return {"choices": [choices[index] for index in sorted(choices)], "usage": usage}


@pytest.mark.parametrize("per_step", [1, 7, 500])
@pytest.mark.parametrize(
    "fields",
    [{}, {"n": 3}, {"stop": ["two t"]}, {"stop": ["two t"], "n": 2}, {"logprobs": True, "top_logprobs": 1},
     {"max_tokens": 9}, {"max_tokens": 2, "n": 2, "stop": "x"}],
    ids=str,
)  # fmt: skip
async def test_a_stream_adds_up_to_the_whole_answer(home: Open, per_step: int, fields: dict[str, Any]) -> None:
    async with home() as made, httpx.AsyncClient(base_url=made.url) as client:
        made.script = made.saying(per_step=per_step, cached_tokens=2)
        whole = (await client.post(CHAT, json=ask(**fields))).json()
        stream = await client.post(CHAT, json=ask(stream=True, stream_options={"include_usage": True}, **fields))
        told = [
            {
                "text": choice["message"]["content"],
                "logprobs": (choice["logprobs"] or {}).get("content") or [],
                "finish_reason": choice["finish_reason"],
            }
            for choice in whole["choices"]
        ]
        assert glued(stream.text) == {"choices": told, "usage": whole["usage"]}
        await until(lambda: made.idle)
        balance = await made.balance()
        assert (balance.reserved, balance.open_grants, balance.settled_grants) == (0, 0, 2)
        assert balance.spent == 2 * whole["usage"]["total_tokens"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("stage", ["before the first token", "in the middle", "behind the last token"])
async def test_whoever_leaves_frees_the_engine_and_pays_for_what_was_made(
    home: Open, stage: str, choices: int, stream: bool
) -> None:
    async with home(day_tokens=1_000_000) as made:
        ids = {"before the first token": [], "in the middle": made.saying().ids[:9]}.get(stage, made.saying().ids[:-1])
        made.script = Script(ids=ids, hangs=True)
        async with connected(made.url) as (reader, writer):
            writer.write(post(ask(stream=stream, n=choices)))
            await until(lambda: made.engine.open_requests == choices)
            if stream and ids:
                await reader.readuntil(b"gateway" if len(ids) > 9 else b"content")
        await until(lambda: made.idle)
        assert sorted(made.engine.aborted) == sorted(one.id for one in made.engine.requests)
        assert not made.app.service.running
        balance = await made.balance()
        prompt = len(made.engine.requests[0].token_ids)
        assert (balance.reserved, balance.open_grants, balance.settled_grants) == (0, 0, 1)
        assert prompt <= balance.spent <= prompt + choices * len(ids)


async def test_many_streams_a_third_of_them_cut_anywhere(home: Open) -> None:
    async with (
        home(step=0.001, day_tokens=10_000_000) as made,
        httpx.AsyncClient(base_url=made.url, limits=httpx.Limits(max_connections=64), timeout=60) as client,
    ):
        usages: list[dict[str, Any]] = []

        async def one(place: int) -> None:
            fields = {"stream": place % 2 == 0, "n": 1 + place % 2}
            try:
                async with asyncio.timeout(place * 0.002 if place % 3 == 0 else None):
                    response = await client.post(
                        CHAT,
                        json=ask(stream_options={"include_usage": True}, **fields)
                        if fields["stream"]
                        else ask(**fields),
                    )
            except TimeoutError:
                return
            answer = glued(response.text) if fields["stream"] else response.json()
            usages.append(answer["usage"])
            for choice in answer["choices"]:
                assert (choice.get("text") or choice["message"]["content"]) == SAID

        await asyncio.gather(*(one(place) for place in range(48)))
        await until(lambda: made.idle)
        assert len(usages) >= 32
        balance = await made.balance()
        assert (balance.reserved, balance.open_grants) == (0, 0)
        whole = sum(usage["total_tokens"] for usage in usages)
        assert whole <= balance.spent <= whole + (48 - len(usages)) * 2 * 128


async def test_a_client_that_does_not_read_is_dropped_and_holds_up_nobody(home: Open) -> None:
    async with (
        home(stream_buffer=64, context=2_000_000) as made,
        httpx.AsyncClient(base_url=made.url, timeout=60) as client,
    ):
        flood = Script(ids=made.tokenizer.encode(" gateway").ids * 500_000, per_step=64)
        made.choose = lambda one: flood if one.sampling.max_tokens > 1000 else None
        async with connected(made.url, receive_buffer=4096) as (_, writer):
            writer.write(post(ask(stream=True, max_tokens=1_000_000, logprobs=True)))
            await until(lambda: made.engine.open_requests)
            while made.engine.open_requests:
                assert glued((await client.post(CHAT, json=ask(stream=True))).text)["choices"][0]["text"] == SAID
        await until(lambda: made.idle)
        assert made.engine.aborted == [made.engine.requests[0].id]
        assert (await made.balance()).open_grants == 0


async def test_what_breaks_while_it_is_written_ends_that_stream_alone(
    home: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ChunkWriter.write

    def breaking(self: ChunkWriter, batch: Sequence[tuple[int, Event]]) -> bytes:
        if self._logprobs and any(type(event) is Finish for _, event in batch):
            raise ZeroDivisionError
        return whole(self, batch)

    monkeypatch.setattr(ChunkWriter, "write", breaking)
    async with home(step=0.002) as made, httpx.AsyncClient(base_url=made.url) as client:
        broken, sound = await asyncio.gather(
            client.post(CHAT, json=ask(stream=True, logprobs=True)), client.post(CHAT, json=ask(stream=True))
        )
        *_, last, rest = broken.text.split("\n\n")
        assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
        assert rest == ""
        assert glued(sound.text)["choices"][0]["text"] == SAID
        await until(lambda: made.idle)
        assert (await made.balance()).open_grants == 0


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"model": "auto"}], ids=str)
async def test_an_engine_that_dies_in_mid_stream_is_told_and_replaced(home: Open, fields: dict[str, Any]) -> None:
    async with home() as made, httpx.AsyncClient(base_url=made.url) as client:
        made.script = Script(ids=made.saying().ids[:-1], hangs=True)
        async with connected(made.url) as (reader, writer):
            writer.write(post(ask(stream=True, **fields)))
            begun = await reader.readuntil(b"gateway")
            made.engine.crash()
            rest = await reader.readuntil(b"0\r\n\r\n")
        assert begun.startswith(b"HTTP/1.1 200")
        assert json.loads(rest.rpartition(b"data: ")[2].partition(b"\n\n")[0])["error"]["type"] == "server_error"
        assert b"[DONE]" not in rest
        await until(lambda: len(made.launch.engines) == 2)
        await made.ready()
        made.script = made.saying()
        assert (await client.post(CHAT, json=ask())).json()["choices"][0]["message"]["content"] == SAID
        await until(lambda: made.idle)
        assert (await made.balance()).open_grants == 0


async def test_an_engine_that_dies_before_a_whole_answer_is_told(home: Open) -> None:
    async with home(step=0.002) as made, httpx.AsyncClient(base_url=made.url) as client:
        made.script = Script(ids=made.saying().ids[:-1], hangs=True)
        asked = asyncio.create_task(client.post(CHAT, json=ask()))
        await until(lambda: made.engine.open_requests)
        (one,) = made.engine._running.values()
        await until(lambda: one.done > 10)
        made.engine.crash()
        response = await asked
        assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("first", "tier"), [("one " * 40, "deep"), ("A gateway speaks.", "fast")])
async def test_a_ladder_climbs_from_what_repeats_itself(home: Open, first: str, tier: str, stream: bool) -> None:
    middling = "Add 2 + 2 and explain it. " + "word " * 30
    async with home() as made, httpx.AsyncClient(base_url=made.url) as client:
        made.choose = lambda one: made.saying(first if one.lane == "fast" else SAID)
        response = await client.post(CHAT, json=ask(middling, model="auto", stream=stream))
        answer = (
            glued(response.text)["choices"][0]["text"]
            if stream
            else response.json()["choices"][0]["message"]["content"]
        )
        assert answer == (SAID if tier == "deep" else first)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_is_good_for_more_behind_an_error(home: Open, stream: bool) -> None:
    async with home() as made, connected(made.url) as (reader, writer):
        for body, status in ((ask(stream=stream), 200), ({}, 400), (ask(model="none"), 404), (ask(stream=stream), 200)):
            writer.write(post(body))
            got, headers, _ = await read_response(reader)
            assert got == status
            assert headers.get("connection") != "close"
