"""Token ids of a rendered prompt, in which only the template's own control strings are control tokens."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from .errors import BadPrompt, ModelMissing
from .segments import independent

SEGMENTS_KEPT = 512
LONGEST_KEPT = 2048
"""Characters of a segment up to which its ids are kept."""
CUT = 64
"""More tokens than a text can have for having been cut off somewhere."""


class PromptEncoder:
    """A copy of a model's tokenizer whose control tokens go by secret names.

    The control strings that a template wrote are renamed before encoding; the same strings from anyone else are then
    ordinary text to the copy, because it knows no token of that name. Everything runs through the tokenizer in one
    pass, so merges, normalisation and prefix spaces are its own. A control token is an added token that is special or
    looks like markup; added tokens that are words or white space are vocabulary and stay so for everyone.
    """

    def __init__(self, tokenizer: Tokenizer, secret: str) -> None:
        """`secret` is a random string of letters and digits that leaves this object nowhere."""
        added = tokenizer.get_added_tokens_decoder()
        control = {token.content: id for id, token in added.items() if _is_control(token.content, token.special)}
        names = {content: f"{secret}{index:04x}" for index, content in enumerate(sorted(control))}
        state = _renamed(json.loads(tokenizer.to_str()), names)
        copy = Tokenizer.from_str(json.dumps(state))
        if any(copy.token_to_id(names[content]) != id for content, id in control.items()):
            raise ModelMissing("the tokenizer's control tokens cannot be told from its text")
        self._copy = copy
        self._names = names
        self._split = re.compile(f"({'|'.join(names.values())})") if names and independent(state) else None
        self._kept = lru_cache(SEGMENTS_KEPT)(lambda salt, segment: self.plain(segment))
        longest_first = sorted(names, key=len, reverse=True)
        self._find = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.control = tuple(control)
        """Strings that a guard must cover in foreign text."""
        self.ids = control

    def rename(self, rendered: str) -> str:
        """Give the control strings of a rendered template, foreign text still covered, their secret names."""
        return self._find.sub(lambda found: self._names[found[0]], rendered)

    def encode(self, renamed: str, most: int, salt: str = "") -> tuple[int, list[int]]:
        """The number of tokens, and the ids unless there are more than `most`.

        What stands between control tokens is often what stood there before: a system prompt, earlier turns of the
        conversation. Its ids are kept for a while, for each `salt` apart, because time tells what was known.

        A text so long that its beginning alone exceeds `most` is not encoded whole; its number is an estimate then.
        Raises `BadPrompt` for text that is not Unicode (lone surrogates).
        """
        if (estimate := self._too_many(renamed, most)) is not None:
            return estimate, []
        ids = self._ids(renamed) if self._split is None else self._joined(self._split.split(renamed), salt)
        return len(ids), ids if len(ids) <= most else []

    def _too_many(self, renamed: str, most: int) -> int | None:
        """About how many tokens a long text has, if its beginning alone has more than `most`; else None.

        Most scripts and digits need a token for a character or two, and English for four or five: so a short beginning
        is encoded first, and then what should be just enough if the text goes on like that.
        """
        length = most + 1024
        longest = 8 * length
        if len(renamed) <= 3 * length:
            return None
        while length < len(renamed):
            count = len(self._ids(renamed[:length]))
            # Cutting may add tokens at the cut, but never more than a few.
            if count > most + CUT:
                return count * len(renamed) // length
            if length >= longest:
                return None
            enough = length * (most + CUT) * 11 // (10 * max(count, 1))
            length = min(max(enough, 2 * length), longest)
        return None

    def _joined(self, segments: list[str], salt: str) -> list[int]:
        ids: list[int] = []
        for segment in segments:
            if segment:
                ids += self._kept(salt, segment) if len(segment) <= LONGEST_KEPT else self._ids(segment)
        return ids

    def _ids(self, text: str) -> list[int]:
        try:
            return self._copy.encode(text, add_special_tokens=False).ids
        except TypeError as error:  # what the tokenizers library says to a str without a UTF-8 form
            raise BadPrompt("the messages hold text that is not Unicode (a lone surrogate)") from error

    def plain(self, text: str) -> tuple[int, ...]:
        """Ids of text that holds no control token, whatever it spells. Raises `BadPrompt` as `encode` does."""
        return tuple(self._ids(text))

    def marker(self, text: str) -> int | None:
        """The id of a marker that is one control token."""
        return self.ids.get(text)


def _is_control(content: str, special: bool) -> bool:
    return len(content) > 1 and (special or not (content.isspace() or content.isalnum()))


def _renamed(state: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A tokenizer.json with tokens renamed, and without what would make one of them out of plain text."""
    state["truncation"] = state["padding"] = state["post_processor"] = None
    for token in state["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = state["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(piece, piece): id for piece, id in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if "merges" in model:
        pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [[a, b] for a, b in pairs if not {a, b, a + b} & names.keys()]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return state
