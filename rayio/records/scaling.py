"""The readers of a run whose number followed the load, as ``result.json`` has them."""

from __future__ import annotations

from dataclasses import dataclass

from rayio.records.record import Record, value


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderChange(Record):
    """A rank got more readers, or kept fewer. At the start it got its first ones."""

    rank: int = value("the rank")
    at_seconds: float = value("when that was wanted, since the first rank's begin", "s")
    seconds: float = value("how long it took until it was so: to start, or to finish what was begun", "s")
    before: int = value("readers before", "readers")
    after: int = value("readers after", "readers")
    why: str = value("what it was for")
    node_seconds: float | None = value(
        "of that, until there were nodes for all that came; null without cluster.reader_pool", "s", default=None
    )
    first_batch_seconds: float | None = value(
        "from then on, until each of those that came had read a batch; null without cluster.reader_pool, and where one "
        "read none before the next change",
        "s",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPeriod(Record):
    """A part of the run: the readers of all ranks together, and AU."""

    begin_seconds: float = value("when it begins, since the first rank's begin", "s")
    seconds: float = value("how long it is", "s")
    paid: float = value("readers on average, from when each was wanted until it had gone", "readers")
    at_work: float = value("readers on average that got batches to read", "readers")
    au: float | None = value("Σ compute / Σ time of ranks that were there; null where none was", "fraction")
    nodes: float | None = value(
        "nodes of cluster.reader_pool paid on average, from when each was asked for until it had gone; null without",
        "nodes",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse(Record):
    """The nodes that came for readers and went with them (``cluster.reader_pool``), and what they bought."""

    node_seconds: float = value(
        "nodes × time, each from when it was asked for until it had gone, or the run was over", "node-seconds"
    )
    mean: float = value("nodes paid at once, on average", "nodes")
    most: int = value("the most that were there at once", "nodes")
    came: int = value("nodes that were asked for; one that went and came again counts twice", "nodes")
    slowest_seconds: float | None = value(
        "the longest that one took, from when it was asked for until it was there; null where none was there", "s"
    )
    capacity_seconds: float | None = value(
        "time to capacity: the longest from when a rank wanted more readers until each of them had read a batch; null "
        "where that is not known of any",
        "s",
    )
    given_up: int = value("readers for which no node came within cluster.reader_pool.deadline", "readers")
    batches: int | None = value("batches that were read on them; null where reads are not traced", "batches")
    batch_share: float | None = value("the same as a share of all batches that readers read", "fraction")
    spared_seconds: float | None = value(
        "what ranks would have waited longer without them, at least and all ranks together, if reads took as long: "
        "what readers did in a time beyond what the first ones of their rank could have done in it. Where readers "
        "share a limit, fewer of them read faster, and it is less. Null where reads are not traced",
        "rank-seconds",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(Record):
    """Readers that came and went (``loader.num_workers: {min, max}``)."""

    reader_seconds: float = value("readers × time, each from when it was wanted until it had gone", "reader-seconds")
    mean: float = value("readers paid at once, on average, all ranks together", "readers")
    least: int = value("the fewest of all ranks together", "readers")
    most: int = value("the most of all ranks together", "readers")
    num_changes: int = value("times that a rank got more or kept fewer, its first ones aside", "changes")
    slowest_seconds: float | None = value(
        "the longest from when more readers were wanted until they were there; null where none were", "s"
    )
    over_time: tuple[ScalingPeriod, ...] = value("the run in at most 60 parts of equal length")
    changes: tuple[ReaderChange, ...] = value("the changes by time, at most the first 200", default=())
    pool: PoolUse | None = value(
        "nodes that came and went with readers; null without cluster.reader_pool", default=None
    )
