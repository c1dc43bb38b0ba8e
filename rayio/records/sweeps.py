"""The table of a sweep as values; ``rayio/report/text/sweep.py`` puts it into words."""

from __future__ import annotations

from dataclasses import dataclass

from rayio.records.doubts import Doubt

#: Status of a run: done, done with unmet expectations, contradictory keys, failed.
DONE, UNMET, IMPOSSIBLE, FAILED = "done", "unmet", "impossible", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePoint:
    """A point over its repeats: its values as a scenario writes them, the means of its metrics, and its status."""

    values: tuple[str, ...]
    au: float | None
    #: Half the 95 % interval of AU; None without repeats.
    au_half: float | None
    samples_per_second: float | None
    data_wait_share: float | None
    sync_share: float | None
    workers: int | None
    window_bytes: float | None
    status: str
    error: str | None
    is_knee: bool
    is_on_front: bool
    #: Compute that counts, of the wall time; None in a sweep without failures.
    goodput: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """A doubt about some points: their number, and the index of the point that has it most."""

    doubt: Doubt
    number: int
    worst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTable:
    """The points of a sweep and what follows from them."""

    keys: tuple[str, ...]
    points: tuple[TablePoint, ...]
    #: Index of the point with the fewest workers, then the least memory, among those that meet ``expect:``; None if all
    #: do, or none, or in doubt.
    cheapest: int | None
    #: Index of the point with the fewest workers, then the least memory, within a point of AU of the best; None where
    #: ``expect:``, failures or a doubt decide, or accelerators differ.
    sufficient: int | None
    warnings: tuple[Warned, ...]
