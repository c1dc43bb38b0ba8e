"""Text and tables that fit the terminal: prose is wrapped in its column, columns without room are left out."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from rayio.report.text.folding import fit

__all__ = ["columns", "fit", "shown"]

#: The widest column of a table in characters, unless it is the only one.
WIDEST = 40


def columns() -> int | None:
    """Return the width of the terminal or of COLUMNS; None for other outputs, of any width."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return max(shutil.get_terminal_size((80, 24)).columns, 20)
    return None


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
