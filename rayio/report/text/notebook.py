"""Texts as a notebook shows them."""

from __future__ import annotations

from html import escape

from rayio.report.text.folding import fit

#: Characters of a line: what a notebook shows on a laptop without scrolling.
WIDTH = 100
_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def html(text: str) -> str:
    """Return a text of the terminal for a notebook: in columns, with long notes wrapped."""
    style = f"font-family:{_FONT};font-size:13px;line-height:1.4;white-space:pre;overflow-x:auto;margin:0"
    return f'<pre style="{style}">{escape(fit(text.rstrip(), WIDTH))}</pre>'
