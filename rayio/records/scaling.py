"""Autoscaled workers of a run, in ``result.json``."""

from __future__ import annotations

from rayio.records.record import Record, record, value


@record
class ReaderChange(Record):
    """A change of a rank's number of workers, including the first."""

    rank: int = value("the rank")
    at_seconds: float = value("time of the request, since the first rank's start", "s")
    seconds: float = value("time until the change was complete: workers started, or finished", "s")
    before: int = value("workers before", "workers")
    after: int = value("workers after", "workers")
    why: str = value("reason")
    node_seconds: float | None = value(
        "time until all nodes were ready; null without cluster.reader_pool", "s", default=None
    )
    first_batch_seconds: float | None = value(
        "time from then until each new worker had read a batch; null without cluster.reader_pool, or if one read none "
        "before the next change",
        "s",
        default=None,
    )


@record
class ScalingPeriod(Record):
    """A period of the run: the workers of all ranks, and AU."""

    begin_seconds: float = value("start, since the first rank's start", "s")
    seconds: float = value("length", "s")
    paid: float = value("mean workers, each from its request until its end", "workers")
    at_work: float = value("mean workers with batches to read", "workers")
    au: float | None = value("Σ compute / Σ time of active ranks; null without", "fraction")
    nodes: float | None = value(
        "mean nodes of cluster.reader_pool, each from its request until its end; null without a pool",
        "nodes",
        default=None,
    )


@record
class PoolUse(Record):
    """The nodes of the reader pool (``cluster.reader_pool``) and their use."""

    node_seconds: float = value("nodes × time, each from its request until its end or the run's", "node-seconds")
    mean: float = value("mean nodes at a time", "nodes")
    most: int = value("most nodes at a time", "nodes")
    came: int = value("requested nodes; one that left and returned counts twice", "nodes")
    slowest_seconds: float | None = value(
        "longest time from a node's request until it was ready; null if none was", "s"
    )
    capacity_seconds: float | None = value(
        "time to capacity: the longest from a rank's request for workers until each had read a batch; null if unknown",
        "s",
    )
    given_up: int = value("workers without a node within cluster.reader_pool.deadline", "workers")
    batches: int | None = value("batches read on these nodes; null if reads are not traced", "batches")
    batch_share: float | None = value("the same as a share of all batches read by workers", "fraction")
    spared_seconds: float | None = value(
        "lower bound of the time that ranks would have waited longer without them, if reads took as long: the work of "
        "workers beyond the capacity of their rank's first ones. If workers share a limit, fewer read faster, and the "
        "value is too high. Null if reads are not traced",
        "rank-seconds",
    )


@record
class Scaling(Record):
    """Autoscaled workers (``loader.num_workers: {min, max}``)."""

    reader_seconds: float = value("workers × time, each from its request until its end", "worker-seconds")
    mean: float = value("mean workers at a time, all ranks", "workers")
    least: int = value("fewest workers at a time, all ranks", "workers")
    most: int = value("most workers at a time, all ranks", "workers")
    num_changes: int = value("changes of a rank's workers, without the first", "changes")
    slowest_seconds: float | None = value(
        "longest time from a request for more workers until they were ready; null without", "s"
    )
    over_time: tuple[ScalingPeriod, ...] = value("the run in at most 60 periods of equal length")
    changes: tuple[ReaderChange, ...] = value("changes by time, at most the first 200", default=())
    pool: PoolUse | None = value("nodes of the reader pool; null without cluster.reader_pool", default=None)
