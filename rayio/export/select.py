"""Which steps of a run to export: the first, the last, the slowest, every so many, all."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.errors import ExportError
from rayio.trace.arrow import is_text, plain, rows

if TYPE_CHECKING:
    import pyarrow as pa

#: What is sent to a collector unless something else is asked for.
DEFAULT = "first,last,slowest:20,every:50"

#: Words that say of a step whether it is taken as soon as those before it are known.
AT_ONCE = ("first", "every", "all")

#: Words of a selection, and whether a number follows.
_WORDS = {"first": False, "last": False, "all": False, "slowest": True, "every": True}


def parse(text: str) -> dict[str, int]:
    """Turn ``slowest:20,every:50,first,last`` or ``all`` into words and numbers.

    Raises:
        ExportError: an unknown word, or a number that is missing or is none.
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
            raise ExportError(f"--select {text}: {part.strip()!r} cannot be; write {form}")
        words[word] = int(number or 1)
    return words


def parse_live(text: str) -> dict[str, int]:
    """Turn a selection for a run that still goes into words and numbers.

    Raises:
        ExportError: as :func:`parse`; or it names steps that are only known when the run is over.
    """
    words = parse(text)
    if late := [word for word in words if word not in AT_ONCE]:
        raise ExportError(
            f"--select {text}: while a run goes nobody knows its {' and '.join(late)} steps; select all, first or "
            f"every:N now, and export the others when it is over: rayio export RUN --otlp URL --select {text}"
        )
    return words


def step_keys(table: pa.Table) -> NDArray[np.int64]:
    """Number the training step that each span is of, ``epoch << 30 | step``; -1 for spans of none."""
    epoch, step = (plain(table[name]).astype(np.int64) for name in ("epoch", "step"))
    return np.where((epoch < 0) | (step < 0), -1, epoch << 30 | step)


def chosen(table: pa.Table, words: dict[str, int]) -> NDArray[np.int64] | None:
    """The numbers of the chosen steps, in order of time; None for all. Only spans of ranks make steps."""
    return None if "all" in words else picked(*times(table), words)


def times(table: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of the steps that a table has spans of, when each began, and when it ended (ns)."""
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
    """Pick steps by when they began and ended; give their numbers in order of time."""
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
