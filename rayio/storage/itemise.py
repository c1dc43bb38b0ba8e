"""The requests of one modelled batch, itemised: their times and places."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.storage.base import FSYNC, ISSUED, OPEN, WRITE, Issued, Placed, Places

Floats = NDArray[np.float64]


def in_flight(each: Floats, depth: int) -> float:
    """Return the seconds of requests in order, at most ``depth`` at a time: the next begins when one ends.

    >>> in_flight(np.full(9, 0.1), 8), in_flight(np.array([3.0, 1.0, 1.0, 1.0, 1.0]), 2)
    (0.2, 4.0)
    """
    if depth <= 1 or len(each) <= depth:
        return float(each.sum()) if depth <= 1 else float(each.max(initial=0.0))
    if each[0] == each[-1] and (each == each[0]).all():
        return -(-len(each) // depth) * float(each[0])
    ends: list[float] = each[:depth].tolist()
    heapify(ends)
    for seconds in each[depth:].tolist():
        heapreplace(ends, ends[0] + seconds)
    return max(ends)


def evenly(num_opens: int, number: int) -> NDArray[np.int64]:
    """Return the request before which each file is opened, where the files of ``number`` requests are unknown."""
    return np.arange(num_opens) * number // max(num_opens, 1)


def itemise(
    kind: int, arrival: int, served: int, requests: Floats, sizes: NDArray[np.int64], opens: Floats,
    *, depth: int = 1, places: Places | None = None,
) -> Issued:  # fmt: skip
    """Return a batch's requests laid out between its arrival and its end (ns).

    ``requests`` and ``opens`` are their seconds on an idle system. At most ``depth`` are in flight, and each file is
    opened before its first request (with unknown files, opens are spread evenly). A batch that waited for the shared
    part of the device took longer: all its requests are stretched alike to fill that time.
    """
    number = len(requests)
    files, file, offset, opening = _placed(places, number)
    is_open, at = _opened(file, opening, len(opens), number)
    seconds = np.empty(len(is_open))
    seconds[at], seconds[is_open] = requests, opens
    start, end, slot = _laid_out(seconds, at, min(depth, number))
    stretch = (served - arrival) / max(float(end.max(initial=0.0)), 1e-12)
    rows = np.zeros(len(seconds), ISSUED)
    rows["start"] = arrival + np.rint(start * stretch).astype(np.int64)
    rows["end"] = arrival + np.rint(end * stretch).astype(np.int64)
    rows["slot"] = slot
    _say_where(rows, kind, is_open, at, sizes, file, offset)
    return Issued(rows, [*files])


def itemise_served(
    kind: int, begun: NDArray[np.int64], served: NDArray[np.int64], slot: NDArray[np.int16], sizes: NDArray[np.int64],
    opens: Floats, *, places: Places | None = None,
) -> Issued:  # fmt: skip
    """Return rows of requests, each from ``begun`` to ``served`` (ns) in ``slot``.

    ``opens`` are the seconds of opening each file, at the beginning of the first request to it.
    """
    number = len(begun)
    files, file, offset, opening = _placed(places, number)
    is_open, at = _opened(file, opening, len(opens), number)
    rows = np.zeros(len(is_open), ISSUED)
    request = np.minimum(np.searchsorted(at, np.arange(len(rows))), number - 1) if number else np.zeros(0, np.int64)
    took = np.zeros(len(rows), np.int64)
    took[is_open] = np.rint(opens * 1e9)
    done = np.cumsum(took)
    before = np.concatenate([[0], done[at]])[request] if number else took
    rows["end"] = np.minimum(begun[request] + done - before, served[request])
    rows["start"] = np.minimum(rows["end"] - took, served[request])
    rows["end"][at], rows["slot"] = served, slot[request]
    _say_where(rows, kind, is_open, at, sizes, file, offset)
    return Issued(rows, [*files])


def _placed(places: Places | None, number: int) -> Placed:
    """Return the places of ``number`` requests: in an unnamed file if unknown."""
    return Placed([""], np.zeros(number, np.int64), None) if places is None else Placed(*places())


def _opened(
    file: NDArray[np.int64], opening: NDArray[np.int64] | None, num_opens: int, number: int
) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """Return which calls are opens, and the call of each request: opens precede the requests that need them."""
    opened = np.flatnonzero(np.diff(file, prepend=-1)) if opening is None else opening
    if len(opened) != num_opens:
        opened = evenly(num_opens, number)
    before = np.bincount(opened, minlength=number)[:number]
    at = np.arange(number) + np.cumsum(before)
    is_open = np.ones(num_opens + number, np.bool_)
    is_open[at] = False
    return is_open, at


def _say_where(
    rows: NDArray[np.void], kind: int, is_open: NDArray[np.bool_], at: NDArray[np.intp], sizes: NDArray[np.int64],
    file: NDArray[np.int64], offset: NDArray[np.int64] | None,
) -> None:  # fmt: skip
    rows["kind"] = np.where(is_open, OPEN, kind)
    rows["offset"] = -1
    rows["nbytes"][at] = sizes
    if kind == WRITE:
        rows["offset"][at] = np.cumsum(sizes) - sizes
    rows["file"][at] = file
    if offset is not None:
        rows["offset"][at] = offset
    # An open belongs to the next request; opens alone get the first file.
    rows["file"][is_open] = file[np.searchsorted(at, np.flatnonzero(is_open))] if len(sizes) else 0


def synced(issued: Issued, number: int) -> Issued:
    """Append ``number`` fsync calls, which take a model no time."""
    rows = np.zeros(number, ISSUED)
    rows["kind"], rows["offset"] = FSYNC, -1
    rows["start"] = rows["end"] = issued.rows["end"].max(initial=0)
    return Issued(np.concatenate([issued.rows, rows]), issued.files)


def _laid_out(seconds: Floats, at: NDArray[np.int64], depth: int) -> tuple[Floats, Floats, NDArray[np.int16]]:
    """Return the start, end and slot of each call: in sequence, or each request with its opens in the next slot."""
    if depth <= 1:
        end = np.cumsum(seconds)
        return np.concatenate([[0.0], end[:-1]]), end, np.zeros(len(seconds), np.int16)
    start, end, slot = np.empty(len(seconds)), np.empty(len(seconds)), np.empty(len(seconds), np.int16)
    free = [(0.0, number) for number in range(depth)]
    first = 0
    for last in at.tolist():
        now, number = heappop(free)
        ends = now + np.cumsum(seconds[first : last + 1])
        end[first : last + 1] = ends
        start[first], start[first + 1 : last + 1] = now, ends[:-1]
        slot[first : last + 1] = number
        heappush(free, (float(ends[-1]), number))
        first = last + 1
    return start, end, slot


class Samples(NamedTuple):
    """The samples of a batch: their files' paths, each sample's file and bytes."""

    files: list[str]
    file: NDArray[np.int64]
    nbytes: NDArray[np.int64]


def sample_rows(issued: Issued, samples: Samples) -> tuple[NDArray[np.void], list[str]]:
    """Return one row of :data:`ISSUED` per sample, with its file; see ``Env.read`` for the times.

    A sample whose file no request names spans all requests.
    """
    rows = np.zeros(len(samples.nbytes), ISSUED)
    rows["file"], rows["nbytes"], rows["offset"] = samples.file, samples.nbytes, -1
    if not len(rows) or not len(issued.rows):
        return rows, samples.files
    known = {path: number for number, path in enumerate(samples.files)}
    number = np.array([known.get(path, len(known)) for path in issued.files])[issued.rows["file"]]
    begins = np.full(len(known) + 1, np.iinfo(np.int64).max)
    ends = np.zeros(len(known) + 1, np.int64)
    np.minimum.at(begins, number, issued.rows["start"])
    np.maximum.at(ends, number, issued.rows["end"])
    group = np.where(begins[samples.file] <= ends[samples.file], samples.file, len(known))
    begins[-1], ends[-1] = issued.rows["start"].min(), issued.rows["end"].max()
    order = np.argsort(group, kind="stable")
    group, sizes = group[order], samples.nbytes[order].astype(np.float64)
    total = np.bincount(group, sizes, len(begins))
    done = np.cumsum(sizes)
    first = np.searchsorted(group, group)
    done -= done[first] - sizes[first]
    span = (ends - begins)[group]
    edge = np.rint(done / np.maximum(total[group], 1) * span).astype(np.int64)
    begin = np.where(np.arange(len(edge)) == first, 0, np.concatenate([[0], edge[:-1]]))
    rows["start"][order] = begins[group] + begin
    rows["end"][order] = begins[group] + edge
    rows["slot"] = 0
    return rows, samples.files
