"""Text and tables that fit the terminal: prose is wrapped beneath its column, columns without room are named."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

#: The most characters of a column of a table, unless it is the only one.
WIDEST = 40
#: Characters that text at the end of a line needs, to be wrapped beside what stands before it.
NARROWEST = 24


def columns() -> int | None:
    """The width of the terminal, or what COLUMNS says; None where output goes elsewhere and may have any width."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return max(shutil.get_terminal_size((80, 24)).columns, 20)
    return None


def fit(text: str, width: int | None) -> str:
    """Wrap lines that are longer than the terminal is wide; words and numbers stay whole.

    What is wrapped goes on beneath the last column of its line, or indented by four where that leaves no room.

    >>> print(fit("  au   0.97  a long remark about it", 28))
      au   0.97  a long remark
                 about it
    """
    if width is None:
        return text
    return "\n".join(piece for line in text.split("\n") for piece in _wrapped(line, width))


def _wrapped(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    starts = [gap.end() for gap in re.finditer(r"(?<=\S) {2,}(?=\S)", line) if gap.end() < width]
    at = starts[-1] if starts else 0
    own = len(line) - len(line.lstrip())
    indent = at if at and width - at >= min(NARROWEST, len(line) - at, width // 2) else own + 4 * bool(at or own)
    return textwrap.wrap(
        line, width, subsequent_indent=" " * min(indent, width // 2), drop_whitespace=True, break_long_words=False,
        break_on_hyphens=False,
    ) or [""]  # fmt: skip


def shown(widths: Sequence[int], width: int | None) -> list[tuple[int, int]]:
    """Choose columns of a table that fit side by side: the place of each, and its width.

    A column takes three characters beside its text. The first one is always shown, as wide as there is room.

    >>> shown([5, 5, 90, 5], 40), shown([5, 5, 90, 5], None), shown([90], 40)
    ([(0, 5), (1, 5)], [(0, 5), (1, 5), (2, 90), (3, 5)], [(0, 36)])
    """
    if width is None:
        return [*enumerate(widths)]
    most = WIDEST if len(widths) > 1 else width
    room = width - 1
    chosen: list[tuple[int, int]] = []
    for place, wanted in enumerate(widths):
        needs = min(wanted, most)
        if not chosen:
            needs = min(needs, max(room - 3, 1))
        if needs + 3 > room:
            break
        room -= needs + 3
        chosen.append((place, needs))
    return chosen
