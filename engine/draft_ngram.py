"""Guesses the next tokens of a sequence from its own text: what followed last time may follow again.

Prompt lookup (Saxena 2023), done as compressors find their matches (Ziv, Lempel 1977; hash chains as in RFC 1951,
section 4): a table by hash of the latest `KEY` tokens, and a chain from each place to the one before it with that hash.
"""

from __future__ import annotations

from array import array

KEY = 3
"""Tokens that must match at least."""
LONGEST = 24
"""Tokens of a match that are compared at most."""
TRIES = 8
"""Earlier places that are looked at."""
_NONE = -1


class NgramDrafter:
    """Reads a sequence's tokens as they grow, never twice but when its table has to grow: O(1) a token, amortised."""

    __slots__ = ("_before", "_heads")

    def __init__(self) -> None:
        self._heads = array("i", [_NONE]) * 256
        """By hash, the latest place: the number of tokens up to and with the `KEY` hashed."""
        self._before = array("i")
        """Of places `KEY`, `KEY` + 1, ...: the one before with the same hash."""

    def draft(self, ids: array[int], most: int) -> tuple[int, ...]:
        """Up to `most` tokens that may follow `ids`, the same as before or longer; none without a match.

        Of the latest places the one with the longest match counts, of equals the latest. A match that reaches to the
        end repeats itself.
        """
        count = len(ids)
        if count <= KEY or most <= 0:
            return ()
        self._read(ids)
        place, best, longest = self._heads[self._hash(ids[-3], ids[-2], ids[-1])], _NONE, KEY - 1
        for _ in range(TRIES):
            if place == _NONE:
                break
            length, limit = 0, min(place, LONGEST)
            while length < limit and ids[place - 1 - length] == ids[count - 1 - length]:
                length += 1
            if length > longest:
                best, longest = place, length
                if length == LONGEST:
                    break
            place = self._before[place - KEY]
        if best == _NONE:
            return ()
        guess = ids[best : best + most].tolist()
        while len(guess) < most:
            guess.append(guess[len(guess) - (count - best)])
        return tuple(guess)

    def _read(self, ids: array[int]) -> None:
        """Enter every place but the end, which would match itself."""
        if len(ids) > 2 * len(self._heads):
            self._heads = array("i", [_NONE]) * (1 << len(ids).bit_length())
            self._before = array("i")
        heads, before = self._heads, self._before
        for place in range(KEY + len(before), len(ids)):
            slot = self._hash(ids[place - 3], ids[place - 2], ids[place - 1])
            before.append(heads[slot])
            heads[slot] = place

    def _hash(self, a: int, b: int, c: int) -> int:
        mixed = ((a * 0x9E3779B1 + b) * 0x85EBCA77 + c) * 0xC2B2AE3D
        return (mixed >> 15) & (len(self._heads) - 1)
