"""By which names may this machine be called while everybody on it may come in?

A page from elsewhere can make its own name resolve to 127.0.0.1 (DNS rebinding). The browser then takes the gateway for
that page's server and lets it read everything; but the request still names the page's host.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

ADDRESS = re.compile(rb"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9a-fA-F:.]+\]")
"""Nobody can make an address resolve to something else."""


class Hosts:
    def __init__(self, names: Sequence[str]) -> None:
        """`names` are allowed besides addresses and localhost."""
        self._names = frozenset(name.lower().encode() for name in (*names, "localhost"))

    def allow(self, host: bytes) -> bool:
        """Whether a request with this Host header may come in; one without any is from no browser."""
        name = re.sub(rb":[0-9]*$", b"", host).lower()
        return not host or name in self._names or name.endswith(b".localhost") or ADDRESS.fullmatch(name) is not None
