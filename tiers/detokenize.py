"""Turns token ids into text as they arrive, and says what bytes each token stands for."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any, Literal

from tokenizers import Tokenizer

from .errors import ModelMissing

_Utf8 = getincrementaldecoder("utf-8")


def byte_alphabet() -> dict[str, int]:
    """The printable stand-ins of byte-level BPE, each with its byte (GPT-2's `bytes_to_unicode`, inverted)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in plain}
    rest = (byte for byte in range(256) if byte not in set(plain))
    table.update({chr(256 + index): byte for index, byte in enumerate(rest)})
    return table


class Vocabulary:
    """What each id of a tokenizer stands for. Made once a model and shared by its streams.

    Knows the decoders of byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM), of sentencepiece with a metaspace, and of
    sentencepiece with byte fallback (Llama 2, Mistral, Gemma). Raises `ModelMissing` for any other.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special)
        steps = _decoder_steps(json.loads(tokenizer.to_str())["decoder"])
        kinds = [step["type"] for step in steps]
        self._alphabet = byte_alphabet() if kinds == ["ByteLevel"] else None
        self._byte_fallback = "ByteFallback" in kinds
        self._replaced: tuple[tuple[str, str], ...] = ()
        self._leading_space: Literal["kept", "stripped", "dropped"] = "kept"
        if self._alphabet is None:
            self._read_steps(steps)
        self._data: dict[int, bytes] = {}
        self._text: dict[int, str | None] = {}

    def _read_steps(self, steps: Sequence[dict[str, Any]]) -> None:
        replaced = []
        for step in steps:
            match step:
                case {"type": "Metaspace", "replacement": str(mark)}:
                    replaced.append((mark, " "))
                    self._leading_space = "kept" if step.get("prepend_scheme") == "never" else "dropped"
                case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                    replaced.append((old, new))
                case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0}:
                    self._leading_space = "stripped" if start else "kept"
                case {"type": "ByteFallback" | "Fuse"}:
                    pass
                case _:
                    raise ModelMissing(f"the tokenizer's decoder step {step.get('type')!r} is not supported")
        self._replaced = tuple(replaced)

    def data(self, id: int) -> bytes:
        """The bytes that a token adds to the text: none for a special token or an id without one."""
        data = self._data.get(id)
        if data is None:
            data = self._data[id] = b"" if id in self._special else self.spelling(id)
        return data

    def spelling(self, id: int) -> bytes:
        """A token's bytes even if it is special: its name then."""
        token = self._tokenizer.id_to_token(id)
        if token is None:
            return b""
        if self._alphabet is not None:
            alphabet = self._alphabet
            try:
                return bytes([alphabet[char] for char in token])
            except KeyError:
                return token.encode()
        if self._byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        for old, new in self._replaced:
            token = token.replace(old, new)
        return token.encode()

    def text(self, id: int) -> str | None:
        """A token's text; None where its bytes are not whole characters by themselves."""
        try:
            return self._text[id]
        except KeyError:
            try:
                text = self.data(id).decode()
            except UnicodeDecodeError:
                text = None
            self._text[id] = text
            return text

    def fragments(self) -> tuple[dict[int, int], dict[int, int]]:
        """Tokens that end inside a character, with the bytes it lacks; tokens of bytes from inside one, with how many.

        Whether a character is complete behind one of the latter depends on the tokens before it.
        """
        partial, continuing = {}, {}
        for id in range(self._tokenizer.get_vocab_size()):
            data = self.data(id)
            if not data or data[-1] < 0x80:
                continue
            lead = next((at for at in range(1, min(len(data), 4) + 1) if data[-at] & 0xC0 != 0x80), 0)
            if lead and 0xC2 <= data[-lead] <= 0xF4 and lead < _length(data[-lead]):
                partial[id] = _length(data[-lead]) - lead
            elif not lead and len(data) < 4:
                continuing[id] = len(data)
        return partial, continuing

    def leading(self, text: str) -> str:
        """What decoding leaves of the text of a stream's first token."""
        match self._leading_space:
            case "stripped":
                return text.removeprefix(" ")
            case "dropped":
                return text.replace(" ", "")
            case _:
                return text


class Detokenizer:
    """One stream's text. The pieces joined equal the whole ids decoded at once, special tokens skipped.

    A piece never holds a part of a character. U+FFFD stands only where the bytes are invalid whatever follows, one a
    maximal invalid sequence (Unicode 16, section 3.9, as `str.decode` does).
    """

    __slots__ = ("_first", "_pending", "_utf8", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = _Utf8("replace")
        self._pending = False
        self._first = True

    def push(self, id: int) -> str:
        """The characters that this token completes, often none or several."""
        text = None if self._pending else self._vocabulary.text(id)
        if text is None:
            text = self._utf8.decode(self._vocabulary.data(id))
            self._pending = bool(self._utf8.getstate()[0])
        if self._first and text:
            self._first = False
            return self._vocabulary.leading(text)
        return text

    @property
    def pending(self) -> bool:
        """Whether the last token ended inside a character."""
        return self._pending

    def flush(self) -> str:
        """End the text here: U+FFFD for the beginning of a character that never ended."""
        if not self._pending:
            return ""
        self._pending = False
        return self._utf8.decode(b"", True)


def _length(lead: int) -> int:
    """Bytes of a UTF-8 character by its first."""
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _decoder_steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        raise ModelMissing("the tokenizer has no decoder")
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _decoder_steps(inner)]
    return [decoder]
