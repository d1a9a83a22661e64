"""The OpenAI chat dialect as the request flow uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiergate.budget import Tenant

from .call import Call
from .dialect import Writer
from .errors import Problem, openai_error
from .sse import event
from .wire_openai import parse_chat
from .wire_openai_answer import ChunkWriter, WholeWriter


class OpenAIChat:
    """`POST /v1/chat/completions`."""

    def __init__(self, *, most_choices: int) -> None:
        self._most_choices = most_choices

    def parse(self, body: Mapping[str, Any], tenant: Tenant) -> Call:
        return parse_chat(body, tenant, most_choices=self._most_choices)

    def writer(self, call: Call, *, id: str, created: int) -> Writer:
        kind = ChunkWriter if call.stream else WholeWriter
        return kind(call, id=id, created=created)

    def error(self, problem: Problem) -> bytes:
        return openai_error(problem)

    def error_event(self, problem: Problem) -> bytes:
        return event(openai_error(problem))
