"""The words for delivered samples: how many, whether each was exactly once, and for how many ranks one counts."""

from __future__ import annotations

from rayio.records.run_result import Books, RunResult
from rayio.units import format_bytes


def of_replica(result: RunResult) -> str:
    """Return how throughput counts the samples of a divided model; empty for others."""
    ranks = result.ranks_of_sample
    return f"a sample counts once for the {ranks} ranks that read it" if ranks else ""


def format_done(share: float) -> str:
    """Return how much of a run that failed was done; never all of it, and never nothing of what was begun.

    >>> format_done(0.214), format_done(0.9999), format_done(0.0003)
    ('21 % done', 'over 99 % done', 'under 1 % done')
    """
    if 0 < share < 0.01:
        return "under 1 % done"
    return "over 99 % done" if 0.99 < share < 1 else f"{100 * share:.0f} % done"


def books_line(books: Books, ranks: int | None = None) -> str:
    """Return how many of the planned samples were delivered, and whether each was exactly once.

    ``ranks`` are those that read each sample, if there are more than one.
    """
    size, each = format_bytes(books.delivered_bytes), f" to each of {ranks} ranks" if ranks else ""
    if books.even and not books.skipped_samples:
        again = f"; {n:,} batch{'es' * (n != 1)} again after failures" if (n := books.redone_steps) else ""
        how = "" if books.contents_verified is not False else " by file and size, contents not verified"
        return (
            f"all {books.planned_samples // (ranks or 1):,} samples delivered exactly once{each}{how} ({size}){again}"
        )
    size += f"; each counts for {ranks} ranks" if ranks else ""
    counts = f"{books.delivered_samples:,} of {books.planned_samples:,} samples delivered ({size})"
    counts += f", {books.skipped_samples:,} skipped after errors" if books.skipped_samples else ""
    if books.even:
        return counts
    if books.even is None:
        done = "" if books.share_done is None else f", {format_done(books.share_done)}"
        return f"run incomplete{done}: {counts}"
    return f"NOT ALL SAMPLES DELIVERED EXACTLY ONCE: {counts}"
