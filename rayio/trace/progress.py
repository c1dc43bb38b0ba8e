"""Progress of a run: approximate sums over the spans that have arrived so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rayio.trace.arrow import is_text, plain, rows
from rayio.trace.order import Ints, distinct

if TYPE_CHECKING:
    import pyarrow as pa

#: The columns that name a step, and the attempt in which it was done.
PLACE = ("rank", "epoch", "step", "attempt")
#: The columns of ranks' spans that are summed.
_SUMMED = ("name", "duration_ns", "bytes", *PLACE)


class Progress:
    """Running sums over the ranks' spans."""

    def __init__(self) -> None:
        #: Steps over all ranks whose compute has ended; one done again after a failure counts once.
        self.steps = 0
        #: The last of them by rank, as a number that grows from step to step.
        self._last = np.zeros(0, np.int64)
        #: Nanoseconds by span name, over all ranks.
        self.time: dict[str, int] = {}
        self.nbytes = 0
        self.num_spans = 0

    def add(self, table: pa.Table) -> None:
        """Add a table of spans to the sums."""
        self.num_spans += len(table)
        are_summed = (plain(table["lane"]) == 0) & is_text(table["role"], "rank")
        if not are_summed.any():
            return
        ranks = rows(table.select(_SUMMED), are_summed)
        duration, nbytes = plain(ranks["duration_ns"]), plain(ranks["bytes"])
        first = 0
        for chunk in ranks["name"].chunks:
            codes, names = plain(chunk.indices), chunk.dictionary.to_pylist()  # the dictionary has unused names too
            here = slice(first, first := first + len(codes))
            for code in distinct(codes).tolist():
                has_name, name = codes == code, names[code]
                self.time[name] = self.time.get(name, 0) + int(duration[here][has_name].sum())
                if name == "compute":
                    self.steps += self._new(*(plain(ranks[column])[here][has_name] for column in PLACE))
                elif name == "data_wait":
                    self.nbytes += int(nbytes[here][has_name].sum())

    def _new(self, rank: Ints, epoch: Ints, step: Ints, attempt: Ints) -> int:
        """Return how many of some spans of compute belong to steps that their rank had not reached."""
        rank, place = np.maximum(rank, 0), (epoch.astype(np.int64) << 32 | step) + 1
        if (more := int(rank.max(initial=-1)) + 1 - len(self._last)) > 0:
            self._last = np.append(self._last, np.zeros(more, np.int64))
        is_new = place > self._last[rank]
        if len(distinct(attempt)) > 1:
            _, first = np.unique(np.stack([rank, place]), axis=1, return_index=True)
            is_new &= np.isin(np.arange(len(rank)), first)
        np.maximum.at(self._last, rank, place)
        return int(is_new.sum())

    def snapshot(self) -> dict[str, Any]:
        """Return the sums as plain values."""
        return {"steps": self.steps, "time": dict(self.time), "bytes": self.nbytes, "spans": self.num_spans}
