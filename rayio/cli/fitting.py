"""Text and tables that fit the terminal: prose is wrapped in its column, columns without room are left out."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

#: The widest column of a table in characters, unless it is the only one.
WIDEST = 40
#: The narrowest last column in which text is wrapped, in characters.
NARROWEST = 24


def columns() -> int | None:
    """Return the width of the terminal or of COLUMNS; None for other outputs, of any width."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return max(shutil.get_terminal_size((80, 24)).columns, 20)
    return None


def fit(text: str, width: int | None) -> str:
    """Return text with long lines wrapped, between words.

    Wrapped text continues in the last column of its line, or indented by four without room for that.

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
    start = starts[-1] if starts else 0
    margin = len(line) - len(line.lstrip())
    has_room = start and width - start >= min(NARROWEST, len(line) - start, width // 2)
    indent = start if has_room else margin + 4 * bool(start or margin)
    return textwrap.wrap(
        line, width, subsequent_indent=" " * min(indent, width // 2), drop_whitespace=True, break_long_words=False,
        break_on_hyphens=False,
    ) or [""]  # fmt: skip


def shown(widths: Sequence[int], width: int | None) -> list[tuple[int, int]]:
    """Return the columns of a table that fit, as (index, width).

    A column takes three characters besides its text. The first column is always shown.

    >>> shown([5, 5, 90, 5], 40), shown([5, 5, 90, 5], None), shown([90], 40)
    ([(0, 5), (1, 5)], [(0, 5), (1, 5), (2, 90), (3, 5)], [(0, 36)])
    """
    if width is None:
        return [*enumerate(widths)]
    most = WIDEST if len(widths) > 1 else width
    room = width - 1
    chosen: list[tuple[int, int]] = []
    for index, wanted in enumerate(widths):
        needs = min(wanted, most)
        if not chosen:
            needs = min(needs, max(room - 3, 1))
        if needs + 3 > room:
            break
        room -= needs + 3
        chosen.append((index, needs))
    return chosen
