"""Spans -> batches: when each could begin, began, was done, was requested and arrived. Arrays, no loops over spans."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.intervals import Lookup, pick
from rayio.analyze.part import Part
from rayio.analyze.timeline import Ints, integers, is_text, texts
from rayio.place import batch_parts
from rayio.trace.arrow import plain
from rayio.trace.order import order_by
from rayio.trace.span import SPANS

if TYPE_CHECKING:
    import pyarrow as pa

STAGES = ("read", "decode")


OF_READS = (
    "name", "role", "index", "node", "lane", "batch", "start_ns", "duration_ns", "bytes", "requests", "status",
)  # fmt: skip
OF_BATCHES = (*OF_READS, "rank", "epoch", "link")


@dataclass(frozen=True, slots=True)
class Reads:
    """Every read that ended well, sorted by batch; times in ns. ``decode`` is -1 where there was none."""

    batch: Ints
    reader: Ints
    node: Ints
    start: Ints
    end: Ints
    nbytes: Ints
    requests: Ints
    decode: Ints
    #: When the batch's last stage ended.
    done: Ints

    def of(self, chosen: NDArray[Any]) -> Reads:
        """Return rows by a mask or by their places."""
        return Reads(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Batches:
    """Every batch that a reader read for a rank; times in ns.

    ``granted`` is when the window first allowed it to begin, ``freed`` when its reader was done with the batch before
    (-1 for none), ``requested`` and ``had`` when its rank requested it and had it; ``nbytes`` are its bytes.
    """

    granted: Ints
    freed: Ints
    began: Ints
    done: Ints
    requested: Ints
    had: Ints
    nbytes: Ints


def reads(spans: pa.Table) -> Reads:
    """Return the reads of a run; of a repeated one, the last."""
    mine = np.flatnonzero(_by_readers(spans) & is_text(spans, "name", *STAGES) & is_text(spans, "status", "ok"))
    batch, start = integers(spans, "batch", mine), integers(spans, "start_ns", mine)
    mine = mine[order_by(batch, start)]
    stage = texts(spans, "name", STAGES, mine)
    batch, start = integers(spans, "batch", mine), integers(spans, "start_ns", mine)
    end = start + integers(spans, "duration_ns", mine)

    is_read = stage == 0
    follows = np.zeros(len(mine), np.bool_)  # whether the next span is a later stage of the same read
    follows[:-1] = (batch[1:] == batch[:-1]) & ~is_read[1:]
    group = np.cumsum(is_read) - 1
    first = np.flatnonzero(is_read)
    done = np.zeros(len(first), np.int64)
    np.maximum.at(done, group[group >= 0], end[group >= 0])
    decode = np.full(len(first), -1, np.int64)
    decoded = (stage == 1) & (group >= 0)
    decode[group[decoded]] = (end - start)[decoded]

    last = np.ones(len(first), np.bool_)
    last[:-1] = batch[first][1:] != batch[first][:-1]
    kept, at = first[last], mine[first[last]]
    everyone = numbers(spans, "index")
    return Reads(
        batch=batch[kept],
        reader=everyone[at],
        node=integers(spans, "node", at),
        start=start[kept],
        end=end[kept],
        nbytes=integers(spans, "bytes", at),
        requests=integers(spans, "requests", at),
        decode=decode[last],
        done=done[last],
    )


def _by_readers(spans: pa.Table) -> NDArray[np.bool_]:
    """Return which spans are on the lane of a reader, or of a rank that reads by itself."""
    lane, inside = plain(spans.column("lane")), np.zeros(len(spans), np.bool_)
    for name in ("reader", "rank"):
        inside |= is_text(spans, "role", name) & (lane == SPANS[STAGES[0]].lanes[name])
    return inside


class Trained:
    """The number, bytes and requests of the batches of training, in a run of ``epochs`` of training."""

    columns = (
        "name", "role", "lane", "attempt", "rank", "epoch", "step", "start_ns", "bytes", "requests", "status",
    )  # fmt: skip

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.batches = self.nbytes = self.requests = 0

    def of(self, part: Part) -> tuple[int, int, int]:
        """Return the sums of the reads of a slice; of a repeated one, the last, as :func:`reads` does."""
        spans = part.spans
        mine = np.flatnonzero(_by_readers(spans) & is_text(spans, "name", "read") & is_text(spans, "status", "ok"))
        batch = part.places.of_any_attempt(mine)
        last = Lookup(batch, integers(spans, "start_ns", mine)).find(batch) == np.arange(len(mine))
        mine = mine[last & (batch >= 0) & (integers(spans, "epoch", mine) < self.epochs)]
        return len(mine), int(integers(spans, "bytes", mine).sum()), int(integers(spans, "requests", mine).sum())

    def add(self, sums: tuple[int, int, int]) -> None:
        """Add the sums of a slice."""
        self.batches += sums[0]
        self.nbytes += sums[1]
        self.requests += sums[2]

    @property
    def mean_bytes(self) -> float | None:
        """Return the mean bytes of a batch; None where no span has them."""
        return self.nbytes / self.batches if self.batches else None


def numbers(spans: pa.Table, column: str) -> Ints:
    """Return a number for each text of a dictionary column; equal texts have equal numbers."""
    known = tuple(sorted({text for chunk in spans.column(column).chunks for text in chunk.dictionary.to_pylist()}))
    place = {text: number for number, text in enumerate(known)}
    parts = [
        np.array([place[text] for text in chunk.dictionary.to_pylist()], np.int64)[plain(chunk.indices)]
        for chunk in spans.column(column).chunks
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def batches(spans: pa.Table, read: Reads, window: int, *, network: bool = False) -> Batches:
    """Return each batch's way through reader and queue; ``window`` is how many steps may be begun and not yet consumed.

    Where the ``network`` was a model, a batch was done when it had crossed that.
    """
    waits = np.flatnonzero((texts(spans, "name", ("data_wait",)) == 0) & (texts(spans, "role", ("rank",)) == 0))
    batch, requested = integers(spans, "link")[waits], integers(spans, "start_ns")[waits]
    had = requested + integers(spans, "duration_ns")[waits]
    era = integers(spans, "rank")[waits] << 32 | integers(spans, "epoch")[waits]

    # The window opens with the first request of a rank's epoch, and further with every batch that arrives.
    order = np.lexsort((had, era))
    nbytes = integers(spans, "bytes")[waits][order]
    era, batch, requested, had = era[order], batch[order], requested[order], had[order]
    opens = np.flatnonzero(np.concatenate([[True], era[1:] != era[:-1]])) if len(era) else np.empty(0, np.int64)
    lengths = np.diff(opens, append=len(era))
    begin, length = np.repeat(opens, lengths), np.repeat(lengths, lengths)
    before = np.minimum(batch_parts(batch)[2] - window, length - 1)
    granted = np.where(before < 0, requested[begin], had[begin + np.maximum(before, 0)]) if len(era) else had

    place = np.searchsorted(read.batch, batch)
    is_read = place < len(read.batch)
    is_read[is_read] = read.batch[place[is_read]] == batch[is_read]
    place = place[is_read]

    freed = np.full(len(read.batch), -1, np.int64)
    turn = np.lexsort((read.start, read.reader))
    same = read.reader[turn[1:]] == read.reader[turn[:-1]]
    freed[turn[1:]] = np.where(same, read.done[turn[:-1]], -1)
    done = read.done
    if network:
        sent = np.flatnonzero((texts(spans, "name", ("transfer",)) == 0) & (texts(spans, "role", ("reader",)) == 0))
        came = integers(spans, "start_ns", sent) + integers(spans, "duration_ns", sent)
        at = Lookup(integers(spans, "batch", sent), came).find(read.batch)
        done = np.maximum(done, pick(came, at, done))
    copies = np.flatnonzero(texts(spans, "name", ("pin",)) == 0)  # the way of its message is not part of that
    at = Lookup(integers(spans, "batch", copies), integers(spans, "start_ns", copies)).find(read.batch)
    done = done + pick(integers(spans, "duration_ns", copies), at, np.zeros_like(done))
    return Batches(
        granted=granted[is_read],
        freed=freed[place],
        began=read.start[place],
        done=done[place],
        requested=requested[is_read],
        had=had[is_read],
        nbytes=nbytes[is_read],
    )
