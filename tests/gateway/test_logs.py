from __future__ import annotations

import json
import logging
import sys

from tiergate.gateway.logs import Lines


def record(**facts: object) -> logging.LogRecord:
    made = logging.LogRecord("tiergate.request", logging.INFO, "x.py", 1, "%s done", ("request",), None)
    made.created, made.msecs = 1.25, 250.0
    made.facts = facts
    return made


def test_lines_for_people() -> None:
    line = Lines("text").format(record(id="r1", empty="", none=None, zero=0, stream=True, reason="a b", odd='x"\ny'))
    assert line == (
        "1970-01-01T00:00:01.250Z info    tiergate.request: request done "
        'id=r1 zero=0 stream=true reason="a b" odd="x\\"\\ny"'
    )


def test_lines_for_machines() -> None:
    line = json.loads(Lines("json").format(record(id="r1", zero=0, odd="x\ny")))
    assert line == {
        "time": "1970-01-01T00:00:01.250Z", "level": "info", "logger": "tiergate.request", "message": "request done",
        "id": "r1", "zero": 0, "odd": "x\ny",
    }  # fmt: skip


def test_tracebacks_are_kept() -> None:
    made = record()
    try:
        raise ValueError("boom")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert "ValueError: boom" in Lines("text").format(made)
    assert "ValueError: boom" in json.loads(Lines("json").format(made))["trace"]


def test_nothing_in_a_message_can_begin_a_line_or_steer_a_terminal() -> None:
    made = logging.LogRecord("x", logging.INFO, "x.py", 1, "GET %s", ("/a\r\nb\x00\x1b[2J\x7f\x85\u2028\u202e",), None)
    try:
        raise ValueError("boom\n1970-01-01T00:00:01.250Z info    tiergate: forged\x1b[2J")
    except ValueError:
        made.exc_info = sys.exc_info()
    first, *rest = Lines("text").format(made).split("\n")
    assert first.endswith("GET /a\\u000d\\u000ab\\u0000\\u001b[2J\\u007f\\u0085\\u2028\\u202e")
    assert all(line.startswith("    ") for line in rest)
    assert any("forged\\u001b[2J" in line for line in rest)
    assert "\n" not in Lines("json").format(made)


def test_a_user_s_text_cannot_begin_a_line_of_its_own() -> None:
    assert "\n" not in Lines("text").format(record(asked="x\nfake line"))
    assert "\n" not in Lines("text").format(record(asked="x\n\x1b[2J\u2028"))
    assert "\x1b" not in Lines("text").format(record(asked="x\n\x1b[2J\u2028"))
