"""The throughput of checkpoints from the spans of their writers: by wall clock, and by rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from rayio.analyze.timeline import Ints, integers, is_text
from rayio.records.transfers import Transfers
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa

#: Spans of files that are written, with the wait until they are durable, and of those that are read back; and of what
#: the engine of checkpoints takes
WRITTEN, READ = ("write", "fsync", "serialise"), ("load", "deserialise")
MIB = 1 << 20


def transfers(
    spans: pa.Table | Slices, names: tuple[str, ...], beyond: Callable[[float], float] | None = None
) -> Transfers | None:
    """Return the throughput of the checkpoints in a run's spans; None if there are none.

    The first of ``names`` are the spans that have bytes. Spans of failed work do not count. ``beyond`` returns the
    seconds that a checkpoint of so many bytes takes after its last span: a simulation's costs.
    """
    slices = Slices.of(spans)
    if not slices.has(*names):
        return None
    table = slices.named(*names)
    is_mine = is_text(table, "role", "checkpoint_writer") & is_text(table, "status", "ok")
    mine = np.flatnonzero(is_mine & is_text(table, "name", *names))
    if not len(mine):
        return None
    rank, epoch, step, attempt = (integers(table, column, mine) for column in ("rank", "epoch", "step", "attempt"))
    start = integers(table, "start_ns", mine)
    end, nbytes = start + integers(table, "duration_ns", mine), integers(table, "bytes", mine)
    is_file = is_text(table, "name", names[0])[mine]
    checkpoint = np.unique(np.stack([attempt, epoch, step]), axis=1, return_inverse=True)[1].ravel()
    late = np.zeros(int(checkpoint.max()) + 1)
    if beyond is not None:
        late += [beyond(size) for size in np.bincount(checkpoint, np.where(is_file, nbytes, 0)).tolist()]
    seconds = _lasted(checkpoint, start, end).sum() / 1e9 + late.sum()
    each, part = np.unique(np.stack([rank, checkpoint]), axis=1, return_inverse=True)
    of_rank = np.unique(each[0], return_inverse=True)[1].ravel()
    spent = np.bincount(of_rank, _lasted(part.ravel(), start, end) / 1e9 + late[each[1]])
    sent = np.bincount(of_rank[part.ravel()], np.where(is_file, nbytes, 0))
    rates = sent[spent > 0] / spent[spent > 0] / MIB
    total = int(nbytes[is_file].sum())
    return Transfers(
        checkpoints=int(checkpoint.max()) + 1,
        files=int(is_file.sum()),
        bytes=total,
        seconds=float(seconds),
        mib_per_second=total / seconds / MIB if seconds else None,
        slowest_rank=float(rates.min()) if len(rates) else None,
        mean_rank=float(rates.mean()) if len(rates) else None,
        fastest_rank=float(rates.max()) if len(rates) else None,
    )


def _lasted(group: Ints, start: Ints, end: Ints) -> Ints:
    """Return the time (ns) from the first start to the last end of each group; groups are numbered from 0."""
    number = int(group.max()) + 1
    first, last = np.full(number, np.iinfo(np.int64).max), np.zeros(number, np.int64)
    np.minimum.at(first, group, start)
    np.maximum.at(last, group, end)
    lasted: Ints = last - first
    return lasted
