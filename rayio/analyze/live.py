"""Numbers while a run is under way: sums over the spans that have arrived so far. Rough on purpose, cheap to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


class Live:
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
        """Give the sums as plain values."""
        return {"steps": self.steps, "time": dict(self.time), "bytes": self.nbytes, "spans": self.num_spans}


def line(snapshot: dict[str, Any], planned_steps: int, seconds: float | None) -> str:
    """Say in one line how far a run is: steps, shares of the time so far (warm-up included), bytes per second."""
    time = snapshot["time"]
    busy = (
        sum(time.get(name, 0) for name in ("data_wait", "compute", "sync", "checkpoint", "evaluate", "overshoot")) or 1
    )
    names = ("compute", "data_wait", "sync", "checkpoint", "evaluate")
    share = {name: 100 * time.get(name, 0) / busy for name in names}
    pauses = f"checkpoint {share['checkpoint']:.1f} %"
    if time.get("evaluate"):
        pauses += f" · evaluation {share['evaluate']:.1f} %"
    # Without a clock there is no rate; spans come from the first moment on, long before the first step ends.
    rate = (
        f"{snapshot['spans']} spans"
        if seconds is None
        else f"{snapshot['bytes'] / max(seconds, 1e-9) / 2**20:.0f} MiB/s"
    )
    return (
        f"{snapshot['steps']}/{planned_steps} rank-steps · compute {share['compute']:.1f} % · data wait "
        f"{share['data_wait']:.1f} % · sync {share['sync']:.1f} % · {pauses} · {rate}"
    )
