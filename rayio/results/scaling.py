"""The readers of a run whose number followed the load, as ``result.json`` has them."""

from __future__ import annotations

from dataclasses import dataclass

from rayio.results.record import Record, value


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderChange(Record):
    """A rank got more readers, or kept fewer. At the start it got its first ones."""

    rank: int = value("the rank")
    at_seconds: float = value("when that was wanted, since the first rank's begin", "s")
    seconds: float = value("how long it took until it was so: to start, or to finish what was begun", "s")
    before: int = value("readers before", "readers")
    after: int = value("readers after", "readers")
    why: str = value("what it was for")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPeriod(Record):
    """A part of the run: the readers of all ranks together, and AU."""

    begin_seconds: float = value("when it begins, since the first rank's begin", "s")
    seconds: float = value("how long it is", "s")
    paid: float = value("readers on average, from when each was wanted until it had gone", "readers")
    at_work: float = value("readers on average that got batches to read", "readers")
    au: float | None = value("Σ compute / Σ time of ranks that were there; null where none was", "fraction")


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
