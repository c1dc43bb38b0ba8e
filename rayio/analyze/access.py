"""How storage was used, as Darshan would print it: requests, sizes, order, files, and the time that it took.

Requests come from spans ``io.open``, ``io.read``, ``io.write`` and ``io.fsync`` (``trace.level: io``). Without them the
spans of whole batches give what they can, and the result says which level has the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.intervals import Lookup, Occupied
from rayio.analyze.timeline import Ints, Lives, integers, nearest_rank, texts
from rayio.storage.base import OPEN, READ
from rayio.trace.arrow import plain
from rayio.units import format_seconds

if TYPE_CHECKING:
    import pyarrow as pa

#: Operations; at level ``io`` their spans are named ``io.<operation>``.
OPERATIONS = ("open", "read", "write", "fsync")

#: Upper ends of the bins of request sizes, in bytes (Darshan's), and their names.
SIZES: dict[str, int] = {
    "0-100": 100, "100-1K": 1000, "1K-10K": 10**4, "10K-100K": 10**5, "100K-1M": 10**6, "1M-4M": 4 * 10**6,
    "4M-10M": 10**7, "10M-100M": 10**8, "100M-1G": 10**9, "1G+": np.iinfo(np.int64).max,
}  # fmt: skip

#: Files and ranks listed one by one.
LISTED = 64

_NEEDS_IO = "opens, files, offsets and the sizes of single requests need trace.level=io"


def access(spans: pa.Table, lives: Lives) -> dict[str, Any]:
    """Sum up a run's requests; seconds, bytes, shares from 0 to 1, None for what the spans do not say.

    ``sequential_share`` and ``consecutive_share`` are of the requests that have one before them by the same role to the
    same file; ``time_share`` is the time with a request in flight over the wall time of the rank that it was for,
    ``exposed_share`` the part during which that rank did not compute. ``operations`` has a row for each operation that
    occurred; without spans of requests, ``requests`` and ``bytes`` are those that batches and checkpoint files counted.
    """
    spans = spans.unify_dictionaries()
    name = texts(spans, "name", tuple(f"io.{operation}" for operation in OPERATIONS))
    chosen = np.flatnonzero(name >= 0)
    is_fine = len(chosen) > 0
    if not is_fine:
        name = texts(spans, "name", OPERATIONS)
        role, lane = texts(spans, "role", ("reader", "rank", "checkpoint_writer")), integers(spans, "lane")
        chosen = np.flatnonzero((name >= 0) & (role >= 0) & (lane == (role == 1)))
    operation, nbytes = name[chosen].astype(np.int64), integers(spans, "bytes")[chosen]
    counted = np.ones(len(chosen), np.int64) if is_fine else integers(spans, "requests")[chosen]
    start = integers(spans, "start_ns")[chosen]
    length = integers(spans, "duration_ns")[chosen]
    rank = integers(spans, "rank")[chosen]

    rows: dict[str, Any] = {}
    for number, what in enumerate(OPERATIONS):
        mine = operation == number
        if not mine.any():
            continue
        rows[what] = {
            "requests": int(counted[mine].sum()),
            "bytes": int(nbytes[mine].sum()),
            "seconds": int(length[mine].sum()) / 1e9,
            "bytes_per_second": _bandwidth(nbytes[mine], length[mine]),
        }
    read = sum(row["bytes"] for what, row in rows.items() if what == "read")
    used = int(integers(spans, "bytes")[texts(spans, "name", ("data_wait", "eval_data_wait")) >= 0].sum())
    found: dict[str, Any] = {
        "level": "io" if is_fine else "batch",
        "operations": rows,
        "read_amplification": read / used if used and read else None,
        **_time(spans, lives, rank, start, start + length),
        "sizes": {},
        "sequential_share": None,
        "consecutive_share": None,
        "num_files": None,
        "opens_per_file": None,
        "most_opens_of_a_file": None,
        "once_share": None,
        "files": [],
        "notes": [] if is_fine else [_NEEDS_IO],
    }
    listed = np.array([row["rank"] for row in found["ranks"]], np.int64)
    _add_operations(found["ranks"], Lookup(listed, listed).find(rank), operation, counted, nbytes)
    if is_fine:
        found["sizes"] = {
            what: _histogram(nbytes[operation == OPERATIONS.index(what)]) for what in ("read", "write") if what in rows
        }
        _add_files(found, spans, chosen, operation, nbytes, start)
    return found


def _bandwidth(nbytes: Ints, length: Ints) -> dict[str, float] | None:
    """The bytes per second of requests that moved something: of all of them together, and percentiles of single ones.

    Percentiles are nearest-rank, so each is a bandwidth that occurred.
    """
    moved = (nbytes > 0) & (length > 0)
    if not moved.any():
        return None
    each = np.sort(nbytes[moved] / (length[moved] / 1e9))
    return {
        "mean": float(nbytes[moved].sum() / (length[moved].sum() / 1e9)),
        **{f"p{percent}": float(each[nearest_rank(len(each), percent)]) for percent in (50, 99)},
    }


def _histogram(nbytes: Ints) -> dict[str, int]:
    """Count requests by size; a size at the upper end of a bin is in it."""
    ends = np.array([*SIZES.values()])
    counts = np.bincount(np.searchsorted(ends, nbytes, side="left"), minlength=len(ends))
    return dict(zip(SIZES, counts.tolist(), strict=True))


def _time(spans: pa.Table, lives: Lives, rank: Ints, start: Ints, end: Ints) -> dict[str, Any]:
    """Measure by rank the time with a request in flight, and the part of it in which the rank did not compute."""
    life = Lookup(lives.rank, lives.rank).find(rank)
    known = life >= 0
    life, start, end = life[known], start[known], end[known]
    start, end = np.maximum(start, lives.begin[life]), np.minimum(end, lives.end[life])
    held = start < end
    busy = Occupied.union(life[held], start[held], end[held])
    name = texts(spans, "name", ("compute", "eval_compute"))  # on lanes 0 and 1
    is_compute = (name >= 0) & (texts(spans, "role", ("rank",)) == 0) & (integers(spans, "lane") == name)
    computes = np.flatnonzero(is_compute)
    begin = integers(spans, "start_ns")[computes]
    of = Lookup(lives.rank, lives.rank).find(integers(spans, "rank")[computes])
    compute = Occupied.union(of, begin, begin + integers(spans, "duration_ns")[computes])
    total, hidden = np.zeros(len(lives.rank), np.int64), np.zeros(len(lives.rank), np.int64)
    np.add.at(total, busy.group, busy.end - busy.start)
    np.add.at(hidden, busy.group, busy.within(compute))
    wall = lives.end - lives.begin
    every = int(wall.sum())
    return {
        "time_share": int(total.sum()) / every if every else None,
        "exposed_share": int((total - hidden).sum()) / every if every else None,
        "ranks": [
            {
                "rank": int(lives.rank[n]),
                "wall_seconds": int(wall[n]) / 1e9,
                "io_seconds": int(total[n]) / 1e9,
                "exposed_seconds": int(total[n] - hidden[n]) / 1e9,
            }
            for n in range(min(LISTED, len(wall)))
        ],
    }


def _add_operations(rows: list[dict[str, Any]], place: Ints, operation: Ints, counted: Ints, nbytes: Ints) -> None:
    """Add requests and bytes by operation to rows; ``place`` says to which each request belongs, -1 to none."""
    shape, known = (len(rows), len(OPERATIONS)), place >= 0
    number, moved = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    np.add.at(number, (place[known], operation[known]), counted[known])
    np.add.at(moved, (place[known], operation[known]), nbytes[known])
    for row, at in zip(rows, range(len(rows)), strict=True):
        for code in np.flatnonzero(number[at]):
            row[OPERATIONS[code]] = {"requests": int(number[at, code]), "bytes": int(moved[at, code])}


def _add_files(
    found: dict[str, Any], spans: pa.Table, chosen: Ints, operation: Ints, nbytes: Ints, start: Ints
) -> None:
    """Add what only requests with a file and an offset say."""
    missing = [column for column in ("file", "offset") if column not in spans.column_names]
    if missing:
        found["notes"].append(f"spans have no {' and no '.join(missing)}: nothing is known of files")
        return
    files, names = _numbered(spans, "file", chosen)
    # The files of an evaluation's dataset have the names of training's, in another folder.
    epoch, is_of = integers(spans, "epoch"), texts(spans, "name", ("eval_data_wait",)) == 0
    is_evaluation = np.isin(epoch[chosen], np.unique(epoch[is_of])) & np.isin(operation, (OPEN, READ))
    files = files + is_evaluation * len(names)
    names += [f"{name} (evaluation)" if name else "" for name in names]
    order = _numbered(spans, "role", chosen)[0] * (1 << 40) + _numbered(spans, "index", chosen)[0]
    found |= _order(operation, order, files, integers(spans, "offset")[chosen], nbytes, start)
    is_named = np.array([bool(name) for name in names] or [False])[files]
    opens = np.bincount(files[is_named & (operation == OPERATIONS.index("open"))], minlength=len(names))
    touched = np.bincount(files[is_named], minlength=len(names)) > 0
    moved = np.bincount(files, weights=nbytes, minlength=len(names)).astype(np.int64)
    found["num_files"] = int(touched.sum())
    if opens.any():
        found["opens_per_file"] = float(opens[opens > 0].mean())
        found["most_opens_of_a_file"] = int(opens.max())
        found["once_share"] = float((opens[opens > 0] == 1).mean())
    first = np.lexsort((np.arange(len(names)), -moved))
    first = first[touched[first]][:LISTED]
    found["files"] = [{"file": names[number]} for number in first]
    at = Lookup(first, first).find(files)
    _add_operations(found["files"], at, operation, np.ones(len(files), np.int64), nbytes)


def _numbered(spans: pa.Table, column: str, chosen: Ints) -> tuple[Ints, list[str]]:
    """The numbers of some spans' texts, and the texts; a column of plain strings is numbered here."""
    import pyarrow as pa

    values = spans.column(column)
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    whole = values.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0)
    codes: Ints = plain(whole.indices).astype(np.int64)[chosen]
    return codes, [name or "" for name in whole.dictionary.to_pylist()]


def _order(operation: Ints, who: Ints, files: Ints, offset: Ints, nbytes: Ints, start: Ints) -> dict[str, float | None]:
    """Compare each read and write with the one before it by the same role, of the same kind, to the same file."""
    kinds = [OPERATIONS.index("read"), OPERATIONS.index("write")]
    moves = np.flatnonzero(np.isin(operation, kinds) & (offset >= 0))
    order = moves[np.lexsort((start[moves], operation[moves], files[moves], who[moves]))]
    same: NDArray[np.bool_] = np.ones(max(len(order) - 1, 0), np.bool_)
    for column in (operation, files, who):
        same &= column[order][1:] == column[order][:-1]
    after, before = offset[order][1:][same], (offset + nbytes)[order][:-1][same]
    if not len(after):
        return {"sequential_share": None, "consecutive_share": None}
    return {
        "sequential_share": float((after >= before).mean()),
        "consecutive_share": float((after == before).mean()),
    }


def retried(spans: pa.Table) -> str | None:
    """Say how many requests failed and were made again, and what that took; None where there was none."""
    is_retry = texts(spans, "name", ("retry",)) == 0
    if not (number := int(is_retry.sum())):
        return None
    lost = format_seconds(float(integers(spans, "duration_ns")[is_retry].sum()) / 1e9)
    many = "request to storage was" if number == 1 else "requests to storage were"
    return f"{number} {many} made again after a failure, which took {lost} in all (spans named retry)"
