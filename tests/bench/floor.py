"""Benchmark worker: the least that a gateway on uvicorn can do, to compare ours with on the same machine.

A bare ASGI app that parses the body and sends constants: no key, no tenant, no routing, no engine, no text, no books.
Arguments: port, text of an answer, seconds between events.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import orjson
import uvicorn

JSON = [(b"content-type", b"application/json")]
SSE = [(b"content-type", b"text/event-stream")]


class Floor:
    def __init__(self, text: str, pause: float) -> None:
        answer = {"object": "chat.completion", "choices": [{"message": {"role": "assistant", "content": text}}]}
        chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": " word"}}]}
        self.whole = orjson.dumps(answer)
        self.chunk = b"data: " + orjson.dumps(chunk) + b"\n\n"
        self.pause = pause

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["method"] == "GET":
            await self._whole(send, b"{}")
        else:
            await self._answer(orjson.loads((await receive())["body"]), send)

    async def _answer(self, request: dict[str, Any], send: Any) -> None:
        if request["stream"]:
            await send({"type": "http.response.start", "status": 200, "headers": SSE})
            for _ in range(request["max_tokens"] + 2):
                await send({"type": "http.response.body", "body": self.chunk, "more_body": True})
                await asyncio.sleep(self.pause)
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        else:
            await self._whole(send, self.whole)

    async def _whole(self, send: Any, body: bytes) -> None:
        headers = [*JSON, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def main() -> None:
    port, text, pause = sys.argv[1:]
    app = Floor(text, float(pause))
    uvicorn.run(app, port=int(port), loop="uvloop", http="httptools", log_config=None, access_log=False)


if __name__ == "__main__":
    main()
