"""A model's chat: what a request looks like to it, and what its tokens mean."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from .detokenize import Vocabulary
from .encode import PromptEncoder, Skeleton
from .errors import BadPrompt, ModelMissing
from .guard import Guard
from .reasoning import Marker, Role
from .template import ChatTemplate, read_template
from .types import ChatRequest

CALL = "<tool_call>"
CALL_END = "</tool_call>"
"""Around a tool call, as Hermes, Qwen and many after them write it."""
FORMS_KEPT = 256
MOST_TURNS = 64
"""Messages of a conversation up to which its form is kept."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A rendered request: its number of tokens, and the ids unless there are too many."""

    tokens: int
    ids: tuple[int, ...]
    opens_thinking: bool
    """The template left a thinking block open behind the prompt."""


class Chat:
    """Template, tokenizer and markers of one model. Immutable; safe in threads."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, *, opener: str = "", closer: str = "") -> None:
        """`opener` and `closer` are the model's thinking markers, empty where it has none."""
        self.template = template
        self.encoder = PromptEncoder(tokenizer, secrets.token_hex(12))
        self.vocabulary = Vocabulary(tokenizer)
        self.thinks = bool(opener and closer)
        self._opener, self._closer = opener, closer
        self._form = lru_cache(FORMS_KEPT)(self._find_form)
        self._longest = max(map(len, tokenizer.get_vocab()))
        self._guard = Guard((*self.encoder.control, *(marker for marker in (opener, closer) if len(marker) > 1)))

    def encode(self, request: ChatRequest, *, thinking: bool, most: int) -> Encoded:
        """The request's prompt, of at most `most` tokens. Raises `BadPrompt`."""
        size = request_size(request)
        if len(request.messages) > most or size > most * self._longest:
            return Encoded(self._estimate(request, size), (), False)
        tools = request.tools if request.tool_choice != "none" else ()
        if tools and not self.template.takes_tools:
            raise BadPrompt("This model's chat template knows no tools.", "tools")
        if (known := self._known(request, size, thinking, most)) is not None:
            return known
        foreign = self._guard.cover(self.template.foreign(request.messages, tools))
        rendered = self.template.render(foreign, [message.role for message in request.messages], thinking=thinking)
        opens = self.thinks and rendered.rfind(self._opener) > rendered.rfind(self._closer)
        tokens, ids = self.encoder.encode(foreign.uncover(self.encoder.rename(rendered)), most, request.salt)
        return Encoded(tokens, tuple(ids), opens)

    def _known(self, request: ChatRequest, size: int, thinking: bool, most: int) -> Encoded | None:
        """The prompt without rendering it, where the template is known not to care what these messages say."""
        messages, bare = request.messages, self.template.bare
        if size > most or len(messages) > MOST_TURNS or (request.tools and request.tool_choice != "none"):
            return None
        if not all([bare(message) for message in messages]):
            return None
        form = self._form(tuple([message.role for message in messages]), thinking)
        if form is None:
            return None
        skeleton, opens = form
        ids = self.encoder.fill(skeleton, [message.content for message in messages], request.salt)
        return Encoded(len(ids), tuple(ids) if len(ids) <= most else (), opens)

    def _find_form(self, roles: Sequence[str], thinking: bool) -> tuple[Skeleton, bool] | None:
        """What prompts of these roles are made of, and whether they end inside a thinking block."""
        shape = self.template.shape(roles, thinking=thinking)
        skeleton = self.encoder.skeleton(shape) if shape is not None else None
        if shape is None or skeleton is None:
            return None
        own = "\n".join([part for part in shape if isinstance(part, str)])
        return skeleton, self.thinks and own.rfind(self._opener) > own.rfind(self._closer)

    def _estimate(self, request: ChatRequest, size: int) -> int:
        """Tokens of messages that cannot fit, at least one a message, going by a sample of the longest."""
        sample = max((message.content for message in request.messages), key=len)[:4096]
        rate = len(self.encoder.plain(sample)) / max(len(sample), 1)
        return max(len(request.messages), int(size * rate), size // self._longest)

    def markers(self, *, tools: bool) -> list[Marker]:
        """What structures this model's output; tool calls only where the request has tools."""
        found: list[tuple[Role, str]] = []
        if self.thinks:
            found.extend((("open", self._opener), ("close", self._closer)))
        if tools:
            found.extend((("call", CALL), ("end", CALL_END)))
        return [Marker(role, text, self.encoder.marker(text)) for role, text in found]


def request_size(request: ChatRequest) -> int:
    """Characters of text in the messages."""
    size = 0
    for message in request.messages:
        size += len(message.content) + len(message.reasoning)
        for call in message.tool_calls:
            size += len(call.arguments)
    return size


def open_chat(folder: Path, *, opener: str = "", closer: str = "") -> Chat:
    """Load a model folder's tokenizer and template. Raises `ModelMissing`."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelMissing(f"{folder.name}: tokenizer.json is missing")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises plain Exception for a file it cannot read
        raise ModelMissing(f"{folder.name}: tokenizer.json is damaged: {error}") from error
    return Chat(read_template(folder), tokenizer, opener=opener, closer=closer)
