"""Progress of a run: approximate sums over the spans that have arrived so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayio.trace.arrow import is_text, plain, rows
from rayio.trace.order import distinct

if TYPE_CHECKING:
    import pyarrow as pa


class Progress:
    """Running sums over the ranks' spans."""

    def __init__(self) -> None:
        #: Steps over all ranks whose compute has ended.
        self.steps = 0
        #: Nanoseconds by span name, over all ranks.
        self.time: dict[str, int] = {}
        self.nbytes = 0
        self.num_spans = 0

    def add(self, table: pa.Table) -> None:
        """Add a table of spans to the sums."""
        self.num_spans += len(table)
        ranks = rows(table, (plain(table["lane"]) == 0) & is_text(table["role"], "rank"))
        duration, nbytes = plain(ranks["duration_ns"]), plain(ranks["bytes"])
        first = 0
        for chunk in ranks["name"].chunks:
            codes, names = plain(chunk.indices), chunk.dictionary.to_pylist()  # the dictionary has unused names too
            here = slice(first, first := first + len(codes))
            for code in distinct(codes).tolist():
                has_name, name = codes == code, names[code]
                self.time[name] = self.time.get(name, 0) + int(duration[here][has_name].sum())
                if name == "compute":
                    self.steps += int(has_name.sum())
                elif name == "data_wait":
                    self.nbytes += int(nbytes[here][has_name].sum())

    def snapshot(self) -> dict[str, Any]:
        """Return the sums as plain values."""
        return {"steps": self.steps, "time": dict(self.time), "bytes": self.nbytes, "spans": self.num_spans}
