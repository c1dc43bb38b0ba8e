"""A shuffle buffer in a stream: samples wait in memory in the order of the files, and leave it in another order.

As in TensorFlow's ``shuffle`` the stream is a buffer ahead of what leaves it: the first batch fills the buffer, and
each later sample that leaves makes room for one more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.data.layout import Batch, Upcoming


class Mixed(NamedTuple):
    """A stream with a shuffle buffer: what the stream keeps, and in real runs the samples in the buffer."""

    streams: Any
    #: Epoch, rank and worker; the place of the next sample to leave, and of the next one to be read.
    of: tuple[int, int, int]
    leaving: int
    filled: int
    samples: Mapping[int, NDArray[np.uint8]] | None = None


def due(upcoming: Upcoming, batch: Batch, kept: Mixed | None) -> tuple[int, int]:
    """Return the places of the stream that are read for a batch: from, and one past the last.

    A worker that lost its buffer reads again what may still be in it.
    """
    end = min(upcoming.length, upcoming.first + len(batch.samples) - 1 + upcoming.buffer)
    if kept is not None and (kept.of, kept.leaving) == (upcoming.of, upcoming.first):
        return kept.filled, max(kept.filled, end)
    return upcoming.first // upcoming.buffer * upcoming.buffer, end


def after(upcoming: Upcoming, batch: Batch, streams: Any, filled: int) -> Mixed:
    """Return the state after a batch, without samples."""
    return Mixed(streams, upcoming.of, upcoming.first + len(batch.samples), filled)


def taken(
    batch: Batch, fed: Batch, content: NDArray[np.uint8], out: NDArray[np.uint8], kept: Mixed | None, begin: int
) -> Mapping[int, NDArray[np.uint8]]:
    """Add the samples that were read to the buffer, take those of the batch into ``out``, and return the rest.

    ``begin`` is the place from which samples were read: the buffer is kept if it was filled until there.
    """
    samples = dict(kept.samples or {}) if kept is not None and kept.filled == begin else {}
    edges = [0, *np.cumsum(fed.nbytes).tolist()]
    for number, sample in enumerate(fed.samples.tolist()):
        samples[sample] = content[edges[number] : edges[number + 1]].copy()
    start = 0
    for sample in batch.samples.tolist():
        part = samples.pop(sample)
        out[start : start + len(part)] = part
        start += len(part)
    return samples
