"""Texts as a notebook shows them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rayio.report.text.folding import fit

#: Characters of a line: what a notebook shows on a laptop without scrolling.
WIDTH = 110
_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def html(text: str) -> str:
    """Return a text of the terminal for a notebook: in columns, with long notes wrapped."""
    return _in_columns(fit(text.rstrip(), WIDTH))


def file_html(notes: Sequence[str], text: str) -> str:
    """Return a file for a notebook: its notes, and its text as it is, to unfold."""
    shown = _in_columns(text.rstrip())
    return f"{html(chr(10).join(notes))}<details><summary>the file</summary>{shown}</details>"


def _in_columns(text: str) -> str:
    style = f"font-family:{_FONT};font-size:13px;line-height:1.4;white-space:pre;overflow-x:auto;margin:0"
    return f'<pre style="{style}">{escape(text)}</pre>'
