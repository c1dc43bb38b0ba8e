"""Numbers while a run is under way: sums over the spans that have arrived so far. Rough on purpose, cheap to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
        import pyarrow.compute as pc

        self.num_spans += len(table)
        ranks = table.filter(pc.and_(pc.equal(table["lane"], 0), pc.equal(table["role"].cast("string"), "rank")))
        if not len(ranks):
            return
        flat = ranks.select(["name", "duration_ns", "bytes"]).set_column(0, "name", ranks["name"].cast("string"))
        for row in (
            flat.group_by("name")
            .aggregate([("duration_ns", "sum"), ("duration_ns", "count"), ("bytes", "sum")])
            .to_pylist()
        ):
            name = row["name"]
            self.time[name] = self.time.get(name, 0) + row["duration_ns_sum"]
            if name == "compute":
                self.steps += row["duration_ns_count"]
            elif name == "data_wait":
                self.nbytes += row["bytes_sum"]

    def snapshot(self) -> dict[str, Any]:
        """The sums as plain values."""
        return {"steps": self.steps, "time": dict(self.time), "bytes": self.nbytes, "spans": self.num_spans}
