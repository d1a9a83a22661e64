"""Text with the log-probabilities of its tokens, cut without losing their alignment (pure)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .types import TokenLogprob


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole characters of the answer; with log-probabilities, those of the tokens that spell exactly this text."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


def cut(piece: Piece, at: int) -> tuple[Piece, Piece]:
    """Split before character `at`. A token on the boundary is divided: each side keeps the bytes that it shows."""
    head, tail = piece.text[:at], piece.text[at:]
    if not piece.logprobs:
        return Piece(head), Piece(tail)
    if not tail:
        return piece, Piece("")
    left = len(head.encode())
    before, after = list[TokenLogprob](), list[TokenLogprob]()
    for token in piece.logprobs:
        size = len(token.data)
        if size <= left:
            before.append(token)
        elif left <= 0:
            after.append(token)
        else:
            before.append(_showing(token, token.data[:left]))
            after.append(_showing(token, token.data[left:]))
        left -= size
    return Piece(head, tuple(before)), Piece(tail, tuple(after))


def _showing(token: TokenLogprob, data: bytes) -> TokenLogprob:
    return replace(token, token=data.decode("utf-8", "replace"), data=data)


class HoldBack:
    """Pieces that may not leave yet. Text with log-probabilities leaves token by token, never a part of one."""

    __slots__ = ("_length", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._length = 0

    def push(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._length += len(piece.text)

    def release(self, keep: int) -> list[Piece]:
        """Let everything go but the last `keep` characters, and whatever shares a token with them."""
        if not keep:
            out, self._pieces, self._length = self._pieces, [], 0
            return out
        out = []
        while self._pieces and self._length - len(self._pieces[0].text) >= keep:
            piece = self._pieces.pop(0)
            self._length -= len(piece.text)
            out.append(piece)
        if self._pieces and self._length > keep and not self._pieces[0].logprobs:
            head, self._pieces[0] = cut(self._pieces[0], self._length - keep)
            self._length = keep
            out.append(head)
        return out

    def take(self, length: int) -> list[Piece]:
        """The first `length` characters exactly; what is behind them stays."""
        out = []
        while length > 0:
            piece = self._pieces.pop(0)
            if len(piece.text) > length:
                piece, rest = cut(piece, length)
                self._pieces.insert(0, rest)
            length -= len(piece.text)
            self._length -= len(piece.text)
            out.append(piece)
        return out

    @property
    def length(self) -> int:
        """Characters held."""
        return self._length
