"""Numbers while a run is under way: sums over the spans that have arrived so far. Rough on purpose, cheap to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayio.trace.arrow import is_text, plain, rows

if TYPE_CHECKING:
    import pyarrow as pa


class Progress:
    """Running sums of what the ranks did."""

    def __init__(self) -> None:
        #: Steps whose compute has ended, over all ranks.
        self.steps = 0
        #: Nanoseconds by name of span, over all ranks.
        self.time: dict[str, int] = {}
        self.nbytes = 0
        self.num_spans = 0

    def add(self, table: pa.Table) -> None:
        """Count in some spans."""
        self.num_spans += len(table)
        ranks = rows(table, (plain(table["lane"]) == 0) & is_text(table["role"], "rank"))
        duration, nbytes = plain(ranks["duration_ns"]), plain(ranks["bytes"])
        for name in {text for chunk in ranks["name"].chunks for text in chunk.dictionary.to_pylist()}:
            has_name = is_text(ranks["name"], name)
            if number := int(has_name.sum()):
                self.time[name] = self.time.get(name, 0) + int(duration[has_name].sum())
                if name == "compute":
                    self.steps += number
                elif name == "data_wait":
                    self.nbytes += int(nbytes[has_name].sum())

    def snapshot(self) -> dict[str, Any]:
        """The sums as plain values."""
        return {"steps": self.steps, "time": dict(self.time), "bytes": self.nbytes, "spans": self.num_spans}
