"""Everything in ``result.json``, field by field; its schema is what ``rayio schema result`` prints.

Times are seconds (``s``), shares fractions of 0 to 1, sizes bytes, MiB 2**20 of them. None says "not known", and a note
says why. Keys are only ever added within a version; a reader passes over those that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rayio.errors import StorageError
from rayio.records.hosts import Fetched, Host
from rayio.records.origin import Origin, of_old
from rayio.records.record import DamagedRecordError, Record, value
from rayio.records.scaling import Scaling

#: Version of ``result.json``.
VERSION = 2
#: Versions that are read. In version 1 the window ended when the first rank was done: a result keeps its numbers.
READABLE = (1, 2)

Number = float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds(Record):
    """The wall time of all ranks together, in parts that sum to it."""

    startup: Number = value("until the first batch was asked for", "s", default=None)
    data_wait: Number = value("exposed data loading time: waiting for a batch", "s", default=None)
    compute: Number = value("computing, as requested", "s", default=None)
    sync: Number = value("waiting for slower ranks, and all-reduce", "s", default=None)
    checkpoint: Number = value("blocked by checkpoints", "s", default=None)
    evaluate: Number = value("evaluating", "s", default=None)
    restart: Number = value("lost to failures", "s", default=None)
    other: Number = value("in no span: the emulator's own; of imported results, in no record", "s", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares(Record):
    """The same parts as fractions of the ranks' wall time; they sum to 1."""

    startup: Number = value("until the first batch was asked for", "fraction", default=None)
    data_wait: Number = value("exposed data loading time: waiting for a batch", "fraction", default=None)
    compute: Number = value("computing, as requested", "fraction", default=None)
    sync: Number = value("waiting for slower ranks, and all-reduce", "fraction", default=None)
    checkpoint: Number = value("blocked by checkpoints", "fraction", default=None)
    evaluate: Number = value("evaluating", "fraction", default=None)
    restart: Number = value("lost to failures", "fraction", default=None)
    other: Number = value("in no span: the emulator's own; of imported results, in no record", "fraction", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics(Record):
    """How long single things took; each percentile is a time that occurred (nearest rank)."""

    count: int = value("how many there were", "things")
    mean: float = value("their mean", "s")
    p50: float = value("half took no longer", "s")
    p90: float = value("nine in ten took no longer", "s")
    p99: float = value("99 in a hundred took no longer", "s")
    max: float = value("the longest", "s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles(Record):
    """How long single things took, by kind; None of a kind that did not occur or was not recorded."""

    step_time: Statistics | None = value("whole steps in the window", default=None)
    data_wait: Statistics | None = value("the wait for a batch, of these steps", default=None)
    compute: Statistics | None = value("the compute of these steps", default=None)
    sync: Statistics | None = value("the sync of these steps", default=None)
    checkpoint: Statistics | None = value("checkpoints of a rank, whole run", default=None)
    evaluate: Statistics | None = value("evaluations of a rank, whole run", default=None)
    read: Statistics | None = value("reads of a batch for training that ended in the window", default=None)
    decode: Statistics | None = value("decodes of a batch for training that ended in the window", default=None)
    collate: Statistics | None = value("null: nothing records it, and version 0.1 had the key", default=None)
    write: Statistics | None = value("writes of a checkpoint file, whole run", default=None)
    fsync: Statistics | None = value("waits until a checkpoint file is durable, whole run", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Record):
    """The evaluations that were finished."""

    au: Number = value("Σ compute / Σ time of evaluations, mean over ranks", "fraction")
    au_min: Number = value("that of the rank with the least", "fraction")
    au_max: Number = value("that of the rank with the most", "fraction")
    data_wait_share: Number = value("waiting for batches, of the time of evaluations", "fraction")
    rounds: int = value("evaluations of the rank with the most", "evaluations")
    steps: int = value("steps of all ranks in them", "steps")
    mean_seconds: float = value("mean time of one rank for one evaluation", "s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank(Record):
    """One rank: its AU in the window, and its wall time in parts that sum to it."""

    rank: int = value("its number")
    au: Number = value("Σ compute / Σ step time over whole steps in the window", "fraction")
    steps: int = value("steps that it completed", "steps")
    wall: Number = value("its wall time, from its first to its last moment", "s")
    startup: Number = value("until the first batch was asked for", "s", default=None)
    data_wait: Number = value("exposed data loading time: waiting for a batch", "s", default=None)
    compute: Number = value("computing, as requested", "s", default=None)
    sync: Number = value("waiting for slower ranks, and all-reduce", "s", default=None)
    checkpoint: Number = value("blocked by checkpoints", "s", default=None)
    evaluate: Number = value("evaluating", "s", default=None)
    restart: Number = value("lost to failures", "s", default=None)
    other: Number = value("in no span", "s", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCounts(Record):
    """What was recorded, and whether all of it is there."""

    level: str = value("trace.level of the scenario")
    resolution: str = value("trace.resolution of the scenario")
    recorded: int = value("spans that the roles recorded", "spans")
    stored: int = value("spans in the run directory", "spans")
    exported: int | None = value("spans that a collector took during the run", "spans", can_be_absent=True)
    not_selected: int | None = value("spans of steps that --select left out", "spans", can_be_absent=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Books(Record):
    """The ledger: what was planned, what was delivered; of training and evaluation, over all ranks."""

    planned_steps: int = value("steps planned", "steps")
    planned_samples: int = value("samples planned", "samples")
    delivered_steps: int = value("steps whose batch was delivered", "steps")
    delivered_samples: int = value("samples in these batches", "samples")
    delivered_bytes: int = value("bytes in these batches", "bytes")
    skipped_steps: int | None = value("0, in files of version 0.1 alone", "steps", can_be_absent=True)
    skipped_samples: int | None = value(
        "samples left out after errors (storage.faults.on_error=skip): planned = delivered + skipped",
        "samples", can_be_absent=True,
    )  # fmt: skip
    redone_steps: int | None = value("0, in files of version 0.1 alone", "steps", can_be_absent=True)
    differences: tuple[str, ...] = value("one sentence per rank that is not even, at most 16", default=())
    even: bool | None = value(
        "whether every planned sample was delivered once, or skipped; null when the run broke off"
    )

    @property
    def share_done(self) -> float | None:
        """The part of the planned steps that was delivered; None where none was planned."""
        return self.delivered_steps / self.planned_steps if self.planned_steps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPoints(Record):
    """Where the points that DLIO's AU lacks of 100 went, mean over ranks and epochs."""

    data_wait: float = value("waiting for its own batch", "percent")
    bookkeeping: float = value("between the batch and the end of compute, and not compute", "percent")
    barrier_skew: float = value("waiting at the barrier for the slowest rank of the step", "percent")
    first_step_wait: float = value("the same in the first step, whose own time the formula leaves out", "percent")
    unrecorded: float = value("in no record: between the end of a step and the start of the next", "percent")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedEpoch(Record):
    """One epoch of imported results; AU and what it lacks sum to 100, where the files of ranks say what it lacks."""

    epoch: int = value("its number, from 1 as in DLIO")
    au: Number = value("AU by DLIO's formula, mean over ranks; of a reduced import as published", "percent")
    data_wait: Number = value("waiting for its own batch", "percent")
    bookkeeping: Number = value("between the batch and the end of compute, and not compute", "percent")
    barrier_skew: Number = value("waiting at the barrier for the slowest rank of the step", "percent")
    first_step_wait: Number = value("the same in the first step, whose own time the formula leaves out", "percent")
    unrecorded: Number = value("in no record: between the end of a step and the start of the next", "percent")
    published_au: Number = value("AU as it was published", "percent")
    seconds: Number = value("length of its blocks on rank 0", "s", can_be_absent=True)
    samples_per_second: Number = value("throughput as it was published", "samples/s", can_be_absent=True)
    step_seconds: Number = value(
        "mean time of a step after the first: the configured compute, divided by AU", "s", can_be_absent=True
    )
    first_step_seconds: Number = value(
        "the first step with the start of the loader: what these steps leave of the length", "s", can_be_absent=True
    )
    checkpoint_seconds: Number = value("checkpoints of rank 0 in it", "s", can_be_absent=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedImport(Record):
    """What an import without the files of ranks stands on: AU and throughput are as published, no step is known."""

    files: tuple[str, ...] = value("the files that it was made of")
    lacks: tuple[str, ...] = value("what is not known, and which file would say it, a sentence each")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported(Record):
    """What was published in imported results, what their records give, and where the rest went."""

    au: float = value(
        "AU by DLIO's formula from the records, mean over epochs; of a reduced import as published", "percent"
    )
    published_au: Number = value("AU as it was published", "percent")
    lost_points: LostPoints | None = value("where the points that AU lacks of 100 went; null of a reduced import")
    epochs: tuple[ImportedEpoch, ...] = value("the same by epoch")
    reduced: ReducedImport | None = value("what it stands on, where it lacks the files of ranks", can_be_absent=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Between(Record):
    """What a prediction lies between: its costs say how sure they are (``costs.cpu.at_most``, ``costs.error`` ...)."""

    time_low: float = value("the least that the run may take, of what it is predicted to take", "fraction")
    time_high: float = value("the most that it may take", "fraction")
    au_low: Number = value("lower end of AU", "fraction")
    au_high: Number = value("upper end of AU", "fraction")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Record):
    """What a run of rayio, or of another benchmark that was imported, came to: ``result.json``, version 2."""

    version: int = value("version of this schema", default=VERSION)
    engine: str = value("ray, local, virtual, or dlio of imported results", default="unknown")
    scenario: str = value("name of the scenario", default="run")
    exit_code: int = value(
        "0 done, 1 our fault, 2 bad input, 3 expect: unmet, 4 ledger uneven, 130 interrupted",
        default=0,
        is_required=True,
    )
    error: str | None = value("why the exit code is not 0", default=None)
    au: Number = value("accelerator utilisation: Σ compute / Σ step time in the window, mean over ranks", "fraction")
    au_min: Number = value("that of the rank with the least", "fraction")
    au_max: Number = value("that of the rank with the most", "fraction")
    au_interval_low: Number = value(
        "lower end of a 95 % interval of AU, by batch means over the steps; of at least 10 steps",
        "fraction",
        default=None,
    )
    au_interval_high: Number = value("its upper end", "fraction", default=None)
    window_seconds: Number = value(
        "length of the window: from every rank warm to the end of the last step that all share, its pause included; "
        "in version 1 to the first rank done",
        "s",
    )
    window_steps: int | None = value("whole steps in it of the rank with the fewest", "steps")
    window_epochs: int | None = value("epochs that they are of", "epochs", default=None)
    samples_per_second: Number = value("samples that arrived in the window, all ranks", "samples/s")
    mib_per_second: Number = value("bytes read for the batches that arrived in the window", "MiB/s")
    data_wait_share: Number = value("exposed data loading time, of step time in the window", "fraction")
    sync_share: Number = value("waiting for slower ranks and all-reduce, of step time in the window", "fraction")
    checkpoint_share: Number = value("blocked by checkpoints, of step time in the window", "fraction")
    evaluate_share: Number = value("evaluating, of step time in the window", "fraction")
    other_share: Number = value("in no span, of step time in the window; with AU these shares sum to 1", "fraction")
    goodput: Number = value("compute that counts, of the wall time of all planned ranks", "fraction")
    wall_seconds: Number = value("from the first rank's begin to the last one's end", "s")
    world_size: int = value("planned ranks", "ranks", default=0)
    steps: int | None = value("steps completed, all ranks together", "steps")
    startup_skew_seconds: Number = value("between the first and the last rank's first wait", "s")
    au_dlio: Number = value("AU by DLIO's formula, mean over epochs", "percent")
    au_dlio_stdev: Number = value("its standard deviation over epochs (population)", "percent")
    samples_per_second_dlio: Number = value("throughput by DLIO's formula, mean over epochs", "samples/s")
    samples_per_second_dlio_stdev: Number = value("its standard deviation over epochs (population)", "samples/s")
    time: Seconds = value("the wall time of all ranks together")
    share: Shares = value("the same as fractions")
    evaluation: Evaluation | None = value("the evaluations; null when there was none", default=None)
    percentiles: Percentiles = value("how long single things took")
    ranks: tuple[Rank, ...] = value("the ranks one by one, at most the first 64", default=())
    notes: tuple[str, ...] = value("what a reader of the numbers should know, a sentence each")
    trace: TraceCounts | None = value("spans recorded and stored", can_be_absent=True)
    ledger: Books | None = value("planned against delivered samples", can_be_absent=True)
    fetched: Fetched | None = value(
        "where the bytes came from that readers of real storage read, or of modelled storage with storage.cache",
        can_be_absent=True,
    )
    hosts: tuple[Host, ...] | None = value("hosts of readers, ranks and writers of real storage", can_be_absent=True)
    dropped_samples_per_epoch: int | None = value("samples that drop_last leaves unread", "samples", can_be_absent=True)
    capped_samples_per_epoch: int | None = value(
        "samples that train.steps leaves unread", "samples", can_be_absent=True
    )
    imported: Imported | None = value("what imported results say", can_be_absent=True)
    loader_share: Number = value(
        "waits for the loader's messages and copies, of step time in the window; of predictions that charge them",
        "fraction",
        can_be_absent=True,
    )
    between: Between | None = value("what a prediction lies between, where its costs say it", can_be_absent=True)
    scaling: Scaling | None = value(
        "readers that came and went, where loader.num_workers is {min, max}", can_be_absent=True
    )
    origin: Origin | None = value(
        "whether this was measured, predicted or imported, and which models it rests on", can_be_absent=True
    )


def read_result(content: Mapping[str, Any], where: object) -> RunResult:
    """Read what ``json.loads`` gave of the file ``where``.

    Raises:
        StorageError: another version wrote it, or a key is missing or holds another type.
    """
    if content.get("version") not in READABLE:
        raise StorageError(f"{where} has version {content.get('version')!r}; it takes the rayio that wrote it")
    try:
        result = RunResult.of_json(content)
        return result if result.origin else replace(result, origin=of_old(result.engine))
    except DamagedRecordError as error:
        raise StorageError(f"{where}: {error}: the file is damaged") from None
