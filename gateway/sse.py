"""Framing of server-sent events (WHATWG HTML, section 9.2): one line of JSON each, ended by a blank line."""

from __future__ import annotations

from typing import Final

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment, which every client skips: it only shows proxies and time-outs that the stream is alive."""
HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def event(data: bytes) -> bytes:
    """One unnamed event. `data` is JSON as orjson writes it, which never holds a raw line break."""
    return b"data: %b\n\n" % data
