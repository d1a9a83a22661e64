"""Reads clients' frames. Whatever they hold, something sensible comes out: nothing a client sends raises here."""

from __future__ import annotations

from typing import Any

import msgspec

from .messages import Command, Failed

_decoder = msgspec.msgpack.Decoder(list[Command])


def read_commands(frame: bytes) -> tuple[list[Command], list[Failed]]:
    """The commands of a frame; and, for those that are not well formed but name their sequence, what to answer.

    One bad command does not spoil the others of its frame. What is not even msgpack is passed over.
    """
    try:
        return _decoder.decode(frame), []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _salvage(frame)


def _salvage(frame: bytes) -> tuple[list[Command], list[Failed]]:
    try:
        items: Any = msgspec.msgpack.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError):
        return [], []
    commands: list[Command] = []
    faults: list[Failed] = []
    for item in items if isinstance(items, list) else ():
        try:
            commands.append(msgspec.convert(item, Command))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as why:
            if isinstance(item, dict) and item.get("type") == "generate" and isinstance(item.get("id"), str):
                faults.append(Failed(id=item["id"], code="invalid", message=str(why)))
    return commands, faults
