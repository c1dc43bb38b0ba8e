"""Selection of steps to export: first, last, slowest:N, every:N, all."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.errors import ExportError
from rayio.trace.arrow import is_text, plain, rows

if TYPE_CHECKING:
    import pyarrow as pa

#: The default selection for a collector.
DEFAULT = "first,last,slowest:20,every:50"

#: Words that can be decided during the run.
AT_ONCE = ("first", "every", "all")

#: Words of a selection; True if a number follows.
_WORDS = {"first": False, "last": False, "all": False, "slowest": True, "every": True}


def parse(text: str) -> dict[str, int]:
    """Return the words and numbers of a selection such as ``slowest:20,every:50,first,last`` or ``all``.

    Raises:
        ExportError: an unknown word, or a missing or invalid number.
    """
    words = {}
    for part in text.split(","):
        word, colon, number = part.strip().partition(":")
        if word not in _WORDS:
            near = get_close_matches(word, _WORDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_WORDS)}"
            raise ExportError(f"--select {text}: no selection named {word!r}; {hint}")
        if _WORDS[word] != bool(colon) or (colon and not (number.isascii() and number.isdigit() and int(number) > 0)):
            form = f"{word}:20, a whole number of at least 1" if _WORDS[word] else f"{word} alone"
            raise ExportError(f"--select {text}: {part.strip()!r} is invalid; write {form}")
        words[word] = int(number or 1)
    return words


def parse_live(text: str) -> dict[str, int]:
    """Return the words and numbers of a selection for a live export.

    Raises:
        ExportError: as by :func:`parse`, or the selection needs the finished run.
    """
    words = parse(text)
    if late := [word for word in words if word not in AT_ONCE]:
        raise ExportError(
            f"--select {text}: {' and '.join(late)} steps are unknown during a run; select all, first or every:N now, "
            f"and export the others afterwards: rayio export RUN --otlp URL --select {text}"
        )
    return words


def step_keys(table: pa.Table) -> NDArray[np.int64]:
    """Return each span's training step as ``epoch << 30 | step``, -1 without one."""
    epoch, step = (plain(table[name]).astype(np.int64) for name in ("epoch", "step"))
    return np.where((epoch < 0) | (step < 0), -1, epoch << 30 | step)


def chosen(table: pa.Table, words: dict[str, int]) -> NDArray[np.int64] | None:
    """Return the numbers of the selected steps in order of time; None for all. Only spans of ranks define steps."""
    return None if "all" in words else picked(*times(table), words)


def times(table: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of a table's steps, with their starts and ends (ns)."""
    ranks = rows(table, is_text(table["role"], "rank") & (plain(table["lane"]) == 0))
    keys = step_keys(ranks)
    placed = keys >= 0
    start = plain(ranks["start_ns"])[placed]
    steps, of = np.unique(keys[placed], return_inverse=True)
    first, last = np.full(len(steps), np.iinfo(np.int64).max), np.full(len(steps), np.iinfo(np.int64).min)
    np.minimum.at(first, of, start)
    np.maximum.at(last, of, start + plain(ranks["duration_ns"])[placed])
    return steps, first, last


def picked(
    steps: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64], words: dict[str, int]
) -> NDArray[np.int64]:
    """Return the selected steps in order of time, given their starts and ends (ns)."""
    if not len(steps):
        return steps
    order = np.lexsort((steps, first))
    is_picked = np.zeros(len(steps), bool)
    if "first" in words:
        is_picked[order[0]] = True
    if "last" in words:
        is_picked[order[-1]] = True
    if "every" in words:
        is_picked[order[:: words["every"]]] = True
    if "slowest" in words:
        by_length = np.argsort(first - last, kind="stable")
        is_picked[by_length[: words["slowest"]]] = True
    kept: NDArray[np.int64] = steps[order[is_picked[order]]]
    return kept
