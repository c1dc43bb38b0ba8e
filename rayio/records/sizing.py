"""The output of ``rayio capacity --json`` and ``rayio advise --json``."""

from __future__ import annotations

from rayio.records.doubts import Doubt
from rayio.records.record import Record, record, value
from rayio.records.run_result import Number

#: Status of a point: above the target, below it, undecided after all repeats, or failed.
HOLDS, FAILS, UNDECIDED, BROKEN = "holds", "fails", "undecided", "broken"


@record
class CapacityPoint(Record):
    """A number of accelerators that was tried."""

    setting: int = value("value of the searched key")
    accelerators: int = value("trainer ranks of the whole cluster", "ranks")
    status: str = value("holds, fails, undecided (its interval contains the target) or broken (it failed)")
    au: Number = value("mean AU of its runs", "fraction")
    au_low: Number = value("lower end of the 95 % interval of AU; null with too few steps", "fraction")
    au_high: Number = value("upper end of the 95 % interval of AU", "fraction")
    runs: int = value("number of runs", "runs")
    steps: int | None = value("counted steps per rank, all runs", "steps")
    samples_per_second: Number = value("samples delivered, all ranks", "samples/s")
    bytes_per_second: Number = value("bytes of these samples", "bytes/s")
    needed_bytes_per_second: Number = value("demand of ranks that never wait", "bytes/s")
    page_cache_share: Number = value("share of bytes from the page cache", "fraction", can_be_absent=True)
    busy_share: Number = value("busy share of this machine's processors", "fraction", can_be_absent=True)
    error: str | None = value("error of a broken point", default=None)


@record
class CapacityChange(Record):
    """A change, or a pair of changes, tried at the first number that does not hold."""

    change: str = value("the change; overrides, if keys of the scenario make it")
    au: Number = value("AU with the change", "fraction")
    au_without: Number = value("AU of the same simulation without it", "fraction", default=None)
    holds: bool = value("true if the target is reached")
    accelerators: int | None = value(
        "accelerators that hold with the change; only for the best one", "ranks", can_be_absent=True
    )
    is_at_least: bool | None = value("true if more were not tried", can_be_absent=True)
    is_pair: bool = value("true if two changes are made together", default=False)


@record
class Combination(Record):
    """The most workers with the most requests in flight, tried where no change and no pair reaches the target."""

    workers: int = value("workers per rank", "workers")
    io_depth: int = value("requests in flight of a worker", "requests")
    au: Number = value("AU with them", "fraction")
    holds: bool = value("true if the target is reached: then advise finds the cheapest setting")
    command: tuple[str, ...] = value("the command that finds the cheapest setting, as words")


@record
class Bottleneck(Record):
    """A bottleneck that keeps a number of accelerators from the target."""

    accelerators: int = value("accelerators of the run that is explained", "ranks")
    bound: str | None = value("the bottleneck: input, loader, compute, straggler …; null with too few steps")
    cause: str | None = value("the largest cause of the bottleneck; null if compute-bound")
    share: Number = value("loss to the bottleneck, of step time", "fraction")
    resource: str | None = value("limiting resource of modelled storage, if the ranks need more of it", default=None)
    sentence: str = value("the bottleneck in words")


@record
class CapacityFound(Record):
    """The output of ``capacity``."""

    worded_by = "rayio.report.text.sizing:text"

    directory: str = value("folder of the runs, the page and the tables")
    scenario: str = value("name of the scenario")
    engine: str = value("ray, local or virtual")
    storage: str = value("name of the storage model, or the dataset's path")
    storage_in_words: str = value(
        "the storage as text: a model by its name or source, files by their mount", default=""
    )
    over: str = value("the searched key")
    target_au: float = value("target AU", "fraction")
    formula: str = value("formula of AU: au, or au_dlio (with the rules of MLPerf Storage)")
    rules: str | None = value("mlperf with its rules", default=None)
    setting: int | None = value("largest value of the key that reaches the target; null if 1 does not, or in doubt")
    accelerators: int | None = value("accelerators at that value")
    is_at_least: bool = value(
        "true if more may hold: no tried value fails, or the one that does is in doubt or not limited by storage"
    )
    is_finished: bool = value("true if the search was not interrupted")
    points: tuple[CapacityPoint, ...] = value("points tried, by value")
    binds: str | None = value("the bottleneck at the first value that does not hold, in words")
    bottleneck: Bottleneck | None = value("the same as values; null if unknown", default=None)
    changes: tuple[CapacityChange, ...] = value("changes that help there, the best first; a pair last")
    combination: Combination | None = value("more workers with more requests in flight, if tried", default=None)
    is_tried: bool = value("true if changes were simulated", default=False)
    notes: tuple[str, ...] = value("notes on the numbers, a sentence each")
    doubts: tuple[Doubt, ...] = value("reasons why some of the answer is not given", default=())


@record
class Price(Record):
    """The price of a setting."""

    workers: int = value("workers of all ranks")
    memory: float = value("expected bytes of all full prefetch windows", "bytes")
    nodes: int = value("nodes of the cluster")


@record
class Setting(Record):
    """A simulated setting."""

    values: tuple[str | int | float | bool | None, ...] = value(  # type: ignore[assignment]  # not the mapping's method
        "values of the varied keys, in their order; lists and mappings as YAML"
    )
    status: str = value("holds, fails, undecided (its interval contains the goal) or broken (it failed)")
    au: Number = value("mean AU of its runs", "fraction")
    au_low: Number = value("lower end of the 95 % interval of AU; null with too few steps", "fraction")
    au_high: Number = value("upper end of the 95 % interval of AU", "fraction")
    runs: int = value("number of simulations", "runs")
    price: Price = value("price")
    bytes_per_second: Number = value("bytes of the samples delivered, all ranks", "bytes/s", default=None)
    needed_bytes_per_second: Number = value("demand of ranks that never wait", "bytes/s", default=None)
    is_on_front: bool = value(
        "true on the Pareto front: no other setting has as much AU at no higher price; of one price the advised "
        "setting, or the one with the highest AU",
        default=False,
    )
    left_out: Number = value(
        "samples of an epoch of the scenario that loader.drop_last leaves out with this setting; absent if they are "
        "hardly more than without it",
        "fraction",
        can_be_absent=True,
    )


@record
class Checked(Record):
    """A run of the advised setting on real storage."""

    engine: str = value("ray or local")
    directory: str = value("run directory")
    au: Number = value("AU", "fraction")
    reaches: bool = value("true if it reaches the goal")
    doubts: tuple[Doubt, ...] = value("reasons why its AU may not be that of the storage", default=())


@record
class AsWritten(Record):
    """A simulation of the advised setting with as few steps per epoch as the scenario has."""

    steps: int = value("steps per rank and epoch of the scenario", "steps")
    searched_steps: int = value("steps per rank and epoch of the search", "steps")
    au: Number = value("AU with the scenario's steps; null with too few", "fraction")
    reaches: bool = value("true if it reaches the goal")


@record
class Advised(Record):
    """The output of ``advise``."""

    worded_by = "rayio.report.text.advice:text"

    directory: str = value("folder of the simulations, the page and the tables")
    scenario: str = value("name of the scenario")
    varied: tuple[str, ...] = value("the varied keys")
    goal: str = value("formula of AU: au or au_dlio")
    target_au: float = value("target AU", "fraction")
    priced_by: tuple[str, ...] = value("costs to minimize, most important first: workers, memory, nodes")
    possible: int = value("possible settings")
    simulations: int = value("simulations made, including repeats with other seeds")
    equally_priced: int = value("settings at the price of the advised one, which has the highest AU of them")
    is_finished: bool = value("true if the search was not interrupted")
    advice: Setting | None = value("the cheapest setting that reaches the goal; null if none does, or in doubt")
    tried: tuple[Setting, ...] = value("settings simulated, by price")
    bottleneck: Bottleneck | None = value(
        "bottleneck of the setting that comes nearest, if none reaches the goal", default=None
    )
    check: Checked | None = value("run of the advised setting; null without --check", default=None)
    as_written: AsWritten | None = value(
        "the advised setting, simulated in the scenario's own short epochs; null if they are as long", default=None
    )
    notes: tuple[str, ...] = value("notes on the numbers, a sentence each")
    doubts: tuple[Doubt, ...] = value("reasons why some of the answer is not given", default=())

    @property
    def is_reached(self) -> bool:
        """True if the advised setting reaches the goal in the search, in the scenario's own epochs and in a run."""
        own, check = self.as_written, self.check
        missed = (own is not None and own.au is not None and not own.reaches) or (
            check is not None and not check.reaches
        )
        return self.advice is not None and not missed


@record
class DatasetSize(Record):
    """The output of ``datasize``: the least dataset by the rules of MLPerf Storage."""

    worded_by = "rayio.report.text.datasize:text"

    scenario: str = value("name of the scenario")
    accelerators: int = value("accelerators of all hosts", "ranks")
    hosts: int = value("hosts")
    memory_bytes: int = value("memory of a host", "bytes")
    files: int = value("least files of the dataset", "files")
    dataset_bytes: int = value("expected bytes of their samples", "bytes")
    bound: str = value("the bound that holds: memory or steps")
    files_by_memory: int = value("files with 5 times the memory of all hosts, rounded down", "files")
    files_by_steps: int = value("files for 500 steps of all accelerators, rounded up", "files")
    samples_per_file: int = value("samples of a file", "samples")
    sample_bytes: int = value("configured bytes of a sample", "bytes")
    batch_size: int = value("samples of an accelerator's step", "samples")
    steps_per_epoch: int = value("steps of an epoch with these files, at most train.steps", "steps")
    files_now: int = value("files of the scenario as it is, on these accelerators", "files")
    num_files: int = value("value of dataset.num_files: the files, or with loader.scaling=weak those of a share")
    shares: int = value("shares of an epoch: accelerators, or replicas of a divided model; 1 if each reads all samples")
    notes: tuple[str, ...] = value("notes on the numbers, a sentence each", default=())
