"""How log lines look: key=value pairs for people, or a JSON object a line for machines."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

import orjson

from .config import LogSpec

PLAIN = re.compile(r"[\w.,:;/@+>-]*", re.ASCII)
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What could begin a line, move a terminal's cursor, or turn the direction of what follows."""


class Lines(logging.Formatter):
    """`facts` of a record, a dictionary, are written out after its message."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = getattr(record, "facts", {})
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z"
        message = record.getMessage().rstrip()
        if self._json:
            line = {"time": stamp, "level": record.levelname.lower(), "logger": record.name, "message": message}
            if trace:
                line["trace"] = trace
            return orjson.dumps(line | facts, default=str).decode()
        told = _pairs(facts) if facts else ""
        plain = f"{stamp} {record.levelname.lower():7} {record.name}: {CONTROL.sub(_escape, message)}{told}"
        return f"{plain}\n{_indented(trace)}" if trace else plain


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _indented(trace: str) -> str:
    """Its lines cannot be taken for lines of the log, whatever text an exception holds."""
    return "\n".join("    " + CONTROL.sub(_escape, line) for line in trace.split("\n"))


def _pairs(facts: Mapping[str, Any]) -> str:
    """` key=value` for every value that says something, quoted where it could be mistaken."""
    parts = []
    for key, value in facts.items():
        if value is None or value == "":
            continue
        if type(value) is bool:
            value = "true" if value else "false"
        elif type(value) is str and not value.isalnum() and not PLAIN.fullmatch(value):
            value = CONTROL.sub(_escape, json.dumps(value))
        parts.append(f" {key}={value}")
    return "".join(parts)


def set_up_logs(spec: LogSpec) -> None:
    """Send this process's logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(spec.format))
    logging.basicConfig(level=spec.level.upper(), handlers=[handler], force=True)
    # Its start and stop lines say nothing that ours do not.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
