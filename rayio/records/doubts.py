"""Remarks on a run's numbers, and doubts: remarks that make some advice invalid. Their sentences are in report/text."""

from __future__ import annotations

from collections.abc import Iterable

from rayio.records.record import Record, record, value

#: Advice that a doubt can make invalid.
PREDICTION = "prediction"  # the change to make, with its AU
CHANGES = "changes"  # the simulated changes, and the cause that they name
CAUSE = "cause"  # the change that removes the doubt's cause
CAPACITY = "capacity"  # how many accelerators a storage feeds
LIMIT = "limit"  # that it feeds no more than these
SETTING = "setting"  # the cheapest setting, or the knee of a sweep
COMPARISON = "comparison"  # whether one run is better than another
INTERVAL = "interval"  # the interval of a prediction
STORAGE = "storage"  # changes of reads, where reads are the bottleneck
SMALL = "small_saving"  # changes that save less than the overhead, or than the first steps miss AU by
ADVICE = (PREDICTION, CHANGES, CAUSE, CAPACITY, LIMIT, SETTING, COMPARISON, INTERVAL, STORAGE, SMALL)


@record
class Remark(Record):
    """A remark on the numbers of a run."""

    code: str = value("which remark it is")
    numbers: dict[str, float] = value("its numbers by name: s, fractions, or counts")
    names: dict[str, str] = value("its names of causes, changes, keys or files")


def remark(code: str, **values: str | float) -> Remark:
    """Return a remark with its numbers and names.

    >>> remark("ranks_missing", missing=1, ranks=2).numbers
    {'missing': 1, 'ranks': 2}
    """
    return Remark(
        code=code,
        numbers={name: number for name, number in values.items() if not isinstance(number, str)},
        names={name: text for name, text in values.items() if isinstance(text, str)},
    )


@record
class Doubt(Record):
    """A reason not to act on some of the numbers."""

    code: str = value(
        "short_run, short_epochs, overhead, not_reproduced, machine_speed, page_cache, restored_from_memory, "
        "busy_machine, other_size, few_failures, first_steps, nothing_delivered or contradiction"
    )
    numbers: dict[str, float] = value("its numbers by name: s, fractions, or counts")
    names: dict[str, str] = value("its names of causes, changes or keys")
    invalidates: tuple[str, ...] = value(f"advice that is not given because of it: {', '.join(ADVICE)}")
    sentence: str = value("the doubt as a sentence, with its remedy", default="")


def blocking(doubts: Iterable[Doubt], *advice: str) -> tuple[Doubt, ...]:
    """Return the doubts that make some of this advice invalid; it is given only where there are none."""
    return tuple(doubt for doubt in doubts if {*advice} & {*doubt.invalidates})
