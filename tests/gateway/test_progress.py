"""Bars on a terminal, lines elsewhere."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from tiergate.gateway.commands.progress import console_progress


def shown(terminal: bool, total: int | None) -> str:
    out = StringIO()
    with console_progress(Console(file=out, force_terminal=terminal, width=100)) as progress:
        progress.begin("downloading", total)
        progress.advance(500)
        progress.begin("converting", 2000)
        progress.advance(2000)
    return out.getvalue()


@pytest.mark.parametrize("total", [1000, None])
def test_bars(total: int | None) -> None:
    text = shown(True, total)
    assert "downloading" in text
    assert "2.0/2.0 kB" in text


def test_plain_lines() -> None:
    assert shown(False, 1000) == "downloading\nconverting\n"


def test_advancing_before_anything_began_is_harmless() -> None:
    out = StringIO()
    with console_progress(Console(file=out)) as progress:
        progress.advance(1)
    assert out.getvalue() == ""
