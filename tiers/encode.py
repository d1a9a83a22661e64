"""Token ids of a rendered prompt, in which only the template's own control strings are control tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from .errors import BadPrompt, ModelMissing
from .segments import independent
from .shape import Shape
from .words import Words, word_pattern

SEGMENTS_KEPT = 512
LONGEST_KEPT = 2048
"""Characters of a segment up to which its ids are kept."""
CUT = 64
"""More tokens than a text can have for having been cut off somewhere."""


Skeleton = tuple[tuple[tuple[int, ...], Shape], ...]
"""Steps of a prompt: ids that are always the same, then text that has contents in it."""


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
        self._named = {name: control[content] for content, name in names.items()}
        self._split = re.compile(f"({'|'.join(names.values())})") if names and independent(state) else None
        self._kept = lru_cache(SEGMENTS_KEPT)(lambda salt, segment: tuple(self._text(segment, salt)))
        alone = self._split is not None and len(control) == len(added)
        pattern = word_pattern(state) if alone else None
        self._words = Words(pattern, copy, self.plain) if pattern is not None else None
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

    def skeleton(self, shape: Shape) -> Skeleton | None:
        """What `fill` makes prompts of this shape from; None where this tokenizer wants to see a prompt whole."""
        if self._split is None:
            return None
        steps: list[tuple[tuple[int, ...], Shape]] = []
        fixed: list[int] = []
        open: list[str | int] = []

        def shut() -> None:
            if any(type(part) is int for part in open):
                steps.append((tuple(fixed), tuple(open)))
                fixed.clear()
            else:
                fixed.extend(self._ids("".join(map(str, open))))
            open.clear()

        for part in shape:
            if isinstance(part, int):
                open.append(part)
                continue
            at = 0
            for found in self._find.finditer(part):
                open.append(part[at : found.start()])
                shut()
                fixed.append(self.ids[found[0]])
                at = found.end()
            open.append(part[at:])
        shut()
        return (*steps, (tuple(fixed), ()))

    def fill(self, skeleton: Skeleton, contents: Sequence[str], salt: str = "") -> list[int]:
        """The ids of a prompt, as `encode` would find them. Raises `BadPrompt` as it does."""
        ids: list[int] = []
        for fixed, parts in skeleton:
            ids += fixed
            if parts:
                text = "".join([contents[part] if type(part) is int else part for part in parts])  # type: ignore[misc]
                ids += self._kept(salt, text) if len(text) <= LONGEST_KEPT else self._text(text, salt)
        return ids

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
        for place, segment in enumerate(segments):
            if place % 2:
                ids.append(self._named[segment])
            elif segment:
                ids += self._kept(salt, segment) if len(segment) <= LONGEST_KEPT else self._text(segment, salt)
        return ids

    def _text(self, text: str, salt: str) -> Sequence[int]:
        """Ids of text that holds no control token."""
        return self._words.encode(text, salt) if self._words is not None and text.isascii() else self._ids(text)

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
        if (name := names.get(token["content"])) is not None:
            # Where it stands beside a word, its secret name would otherwise be read as text.
            token["content"], token["single_word"] = name, False
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
