"""Lets pages of the configured origins call the API, and no others (Fetch standard, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

Headers = tuple[tuple[bytes, bytes], ...]

EXPOSED: Final = (
    b"x-request-id, openai-processing-ms, retry-after, x-should-retry, x-tiergate-route, x-tiergate-tier, "
    b"x-tiergate-thinking-budget, x-tiergate-thinking-mode"
)
VARY: Final = (b"vary", b"origin")


class Cors:
    """Without origins it adds nothing to any response."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origin.rstrip("/").encode() for origin in origins)

    def answer(self, origin: bytes) -> Headers:
        """What a response to a page of `origin` carries; empty is no page."""
        if not self._origins:
            return ()
        if origin not in self._origins:
            return (VARY,)
        return (VARY, (b"access-control-allow-origin", origin), (b"access-control-expose-headers", EXPOSED))

    def preflight(self, origin: bytes) -> Headers | None:
        """The headers that let a browser send its request; None for origins that may not."""
        if origin not in self._origins:
            return None
        return (
            VARY,
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", b"authorization, content-type, x-api-key"),
            (b"access-control-max-age", b"600"),
        )
