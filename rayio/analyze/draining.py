"""The drains of a burst tier from the spans of checkpoint writers: their times, lags, and bytes that wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rayio.analyze.timeline import Ints, integers, is_text
from rayio.analyze.transfers import WRITTEN
from rayio.records.draining import Draining
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa


def draining(spans: pa.Table | Slices) -> Draining | None:
    """Return the drains in a run's spans; None if there are none. Spans of failed work do not count."""
    table = Slices.of(spans).named(*WRITTEN, "drain", "drain_wait", "checkpoint")
    is_done = is_text(table, "status", "ok")
    drains = np.flatnonzero(is_text(table, "name", "drain") & is_done)
    if not len(drains):
        return None
    writes = np.flatnonzero(is_text(table, "name", *WRITTEN) & is_text(table, "role", "checkpoint_writer") & is_done)
    end = integers(table, "start_ns") + integers(table, "duration_ns")
    began = integers(table, "start_ns")
    of_attempt, of_run = _numbered(table, "attempt", "epoch", "step"), _numbered(table, "epoch", "step")
    lasted = _last(of_attempt, end, drains) - _first(of_attempt, began, drains)
    there, drained = _last(of_run, end, writes), _last(of_run, end, drains)
    lag = (drained - there)[(drained > there) & (there > 0)] / 1e9
    lasted = lasted[np.unique(of_attempt[drains])]
    return Draining(
        checkpoints=int((drained > 0).sum()),
        files=len(drains),
        bytes=int(integers(table, "bytes", drains).sum()),
        mean_seconds=float(lasted.mean() / 1e9),
        mean_lag=float(lag.mean()) if len(lag) else 0.0,
        longest_lag=float(lag.max(initial=0.0)),
        most_bytes=_most(table, of_attempt, writes, drains, end),
        end_seconds=_end(table, end),
    )


def _numbered(table: pa.Table, *names: str) -> Ints:
    """Return a number for each span, equal for equal columns of these names."""
    columns = np.stack([integers(table, name) for name in names])
    numbers: Ints = np.unique(columns, axis=1, return_inverse=True)[1].ravel()
    return numbers


def _first(place: Ints, begin: Ints, chosen: Ints) -> Ints:
    first = np.full(int(place.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, place[chosen], begin[chosen])
    return first


def _last(place: Ints, end: Ints, chosen: Ints) -> Ints:
    last = np.zeros(int(place.max()) + 1, np.int64)
    np.maximum.at(last, place[chosen], end[chosen])
    return last


def _most(table: pa.Table, place: Ints, writes: Ints, drains: Ints, end: Ints) -> int:
    """Return the most bytes in the tier at a time that an attempt wrote there and had not drained."""
    nbytes, attempt, most = integers(table, "bytes"), integers(table, "attempt"), 0
    own = drains[np.isin(place[drains], place[writes])]
    for number in np.unique(attempt[writes]).tolist():
        came, went = (some[attempt[some] == number] for some in (writes, own))
        changes = np.concatenate([nbytes[came], -nbytes[went]])
        order = np.lexsort((changes, np.concatenate([end[came], end[went]])))
        most = max(most, int(np.cumsum(changes[order]).max(initial=0)))
    return most


def _end(table: pa.Table, end: Ints) -> float:
    """Return the longest wait after a rank's last step: one that no checkpoint follows."""
    waits = np.flatnonzero(is_text(table, "name", "drain_wait"))
    saves = np.flatnonzero(is_text(table, "name", "checkpoint"))
    rank, start = integers(table, "rank"), integers(table, "start_ns")
    followed = {*zip(rank[saves].tolist(), start[saves].tolist(), strict=True)}
    last = [row for row in waits.tolist() if (int(rank[row]), int(end[row])) not in followed]
    return float(integers(table, "duration_ns")[last].max(initial=0) / 1e9)
