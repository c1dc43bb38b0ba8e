"""What ``rayio capacity --json`` and ``rayio advise --json`` print, field by field."""

from __future__ import annotations

from dataclasses import dataclass

from rayio.records.record import Record, value
from rayio.records.run_result import Number

#: What became of a point: sure to keep the target, sure not to, not sure after all repeats, not run to its end.
HOLDS, FAILS, UNDECIDED, BROKEN = "holds", "fails", "undecided", "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPoint(Record):
    """One number of accelerators that was tried."""

    setting: int = value("what the searched key was")
    accelerators: int = value("trainer ranks of the whole cluster", "ranks")
    status: str = value("holds, fails, undecided (its interval has the target in it) or broken (it could not be run)")
    au: Number = value("mean AU of its runs", "fraction")
    au_low: Number = value("lower end of the 95 % interval of AU; null of too few steps", "fraction")
    au_high: Number = value("upper end of it", "fraction")
    runs: int = value("runs that this rests on", "runs")
    steps: int | None = value("steps per rank that count, of all runs together", "steps")
    samples_per_second: Number = value("what all ranks got", "samples/s")
    bytes_per_second: Number = value("the bytes of these samples", "bytes/s")
    needed_bytes_per_second: Number = value("what all ranks ask for when they never wait", "bytes/s")
    page_cache_share: Number = value("bytes that the page cache gave, of those read", "fraction", can_be_absent=True)
    busy_share: Number = value("processors of this machine that were busy meanwhile", "fraction", can_be_absent=True)
    error: str | None = value("why it could not be run", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityChange(Record):
    """One thing changed at the first number that does not hold."""

    change: str = value("what was changed")
    au: Number = value("AU with it, at that number", "fraction")
    holds: bool = value("whether that keeps the target")
    accelerators: int | None = value(
        "accelerators that hold with it; of the best change alone", "ranks", can_be_absent=True
    )
    is_at_least: bool | None = value("whether these are as many as were tried", can_be_absent=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFound(Record):
    """What ``capacity`` prints."""

    directory: str = value("folder with every run that was made, its page and its tables")
    scenario: str = value("name of the scenario")
    engine: str = value("ray, local or virtual")
    storage: str = value("the storage: the name of its model, or the dataset's path")
    storage_in_words: str = value(
        "the same for people: a model by its name or source, files by their mount", default=""
    )
    over: str = value("the searched key")
    target_au: float = value("AU that is to be kept", "fraction")
    formula: str = value("au, or au_dlio by the rules of MLPerf Storage: whose AU is meant")
    rules: str | None = value("mlperf where its rules were kept", default=None)
    setting: int | None = value("largest value of the key that is sure to keep the target; null where 1 does not")
    accelerators: int | None = value("accelerators that it is")
    is_at_least: bool = value("whether nothing that could be tried fails, so that it may be more")
    is_finished: bool = value("whether the search came to its end")
    points: tuple[CapacityPoint, ...] = value("what was tried, by ascending value")
    binds: str | None = value("what binds at the first value that does not hold")
    changes: tuple[CapacityChange, ...] = value("one thing changed there, the best first; of simulations alone")
    notes: tuple[str, ...] = value("what a reader of the numbers should know, a sentence each")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price(Record):
    """What a setting costs, as far as a scenario says."""

    readers: int = value("readers of all ranks")
    memory: float = value("expected bytes of all windows when they are full", "bytes")
    nodes: int = value("nodes of the cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Record):
    """One setting that was simulated."""

    values: tuple[str | int | float | bool | None, ...] = value(  # type: ignore[assignment]  # not the mapping's method
        "values of the varied keys, in their order; lists and mappings as YAML"
    )
    status: str = value("holds, fails, undecided (its interval has the goal in it) or broken (it could not be run)")
    au: Number = value("mean AU of its runs", "fraction")
    au_low: Number = value("lower end of the 95 % interval of AU; null of too few steps", "fraction")
    au_high: Number = value("upper end of it", "fraction")
    runs: int = value("simulations that this rests on", "runs")
    price: Price = value("what it costs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked(Record):
    """The advised setting, run for real."""

    engine: str = value("ray or local")
    directory: str = value("its run directory")
    au: Number = value("its AU", "fraction")
    reaches: bool = value("whether that reaches the goal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised(Record):
    """What ``advise`` prints."""

    directory: str = value("folder with every simulation that was made, its page and its tables")
    scenario: str = value("name of the scenario")
    varied: tuple[str, ...] = value("the varied keys")
    goal: str = value("au, or au_dlio: whose AU is meant")
    target_au: float = value("AU that is to be reached", "fraction")
    priced_by: tuple[str, ...] = value("what is dear first, then what decides between equals: readers, memory, nodes")
    possible: int = value("settings that there are")
    simulations: int = value("simulations that were made for it, repeats with another seed included")
    is_finished: bool = value("whether the search came to its end")
    advice: Setting | None = value("the cheapest that is sure to reach the goal; null where none is")
    tried: tuple[Setting, ...] = value("what was simulated, by ascending price")
    check: Checked | None = value("the advised setting, run for real; null where nobody asked", default=None)
    notes: tuple[str, ...] = value("what a reader of the numbers should know, a sentence each")
