"""The content of ``result.json``; ``rayio schema result`` prints its schema.

Times are in seconds (``s``), shares are fractions of 0 to 1, sizes are in bytes, MiB are 2**20 bytes. None means
"unknown", and a note explains it. Within a version keys are only added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rayio.errors import StorageError
from rayio.records.doubts import Doubt, Remark
from rayio.records.draining import Draining
from rayio.records.failures import Survived
from rayio.records.hosts import Fetched, Host
from rayio.records.origin import Origin, of_old
from rayio.records.record import DamagedRecordError, Record, record, value
from rayio.records.scaling import Scaling
from rayio.records.transfers import Transfers
from rayio.records.workflow import Workflow

#: Version of ``result.json``.
VERSION = 2
#: Versions that can be read. In version 1 the window ended when the first rank was done.
READABLE = (1, 2)

Number = float | None


@record
class Seconds(Record):
    """The wall time of the run, of all ranks, in parts."""

    startup: Number = value("until the first batch is requested", "s", default=None)
    restore: Number = value("reading back a checkpoint", "s", default=None)
    gap: Number = value("the pause of checkpoint.phases", "s", default=None)
    data_wait: Number = value("exposed data loading: waiting for batches", "s", default=None)
    device_copy: Number = value("batches on their way to accelerators", "s", default=None)
    bubble: Number = value("pipeline stages without a microbatch", "s", default=None)
    compute: Number = value("computing, as requested", "s", default=None)
    sync: Number = value("waiting for slower ranks, and all-reduce", "s", default=None)
    drain_wait: Number = value("waiting until the burst tier is drained", "s", default=None)
    checkpoint: Number = value("blocked by checkpoints", "s", default=None)
    evaluate: Number = value("evaluating", "s", default=None)
    restart: Number = value("lost to failures", "s", default=None)
    other: Number = value("overhead of the emulator; for imported results, unrecorded time", "s", default=None)
    ended: Number = value("after the rank's end, until the last rank's", "s", default=None)


@record
class Shares(Record):
    """The same parts as fractions of wall time × ranks; they sum to 1."""

    startup: Number = value("until the first batch is requested", "fraction", default=None)
    restore: Number = value("reading back a checkpoint", "fraction", default=None)
    gap: Number = value("the pause of checkpoint.phases", "fraction", default=None)
    data_wait: Number = value("exposed data loading: waiting for batches", "fraction", default=None)
    device_copy: Number = value("batches on their way to accelerators", "fraction", default=None)
    bubble: Number = value("pipeline stages without a microbatch", "fraction", default=None)
    compute: Number = value("computing, as requested", "fraction", default=None)
    sync: Number = value("waiting for slower ranks, and all-reduce", "fraction", default=None)
    drain_wait: Number = value("waiting until the burst tier is drained", "fraction", default=None)
    checkpoint: Number = value("blocked by checkpoints", "fraction", default=None)
    evaluate: Number = value("evaluating", "fraction", default=None)
    restart: Number = value("lost to failures", "fraction", default=None)
    other: Number = value("overhead of the emulator; for imported results, unrecorded time", "fraction", default=None)
    ended: Number = value("after the rank's end, until the last rank's", "fraction", default=None)


@record
class Statistics(Record):
    """Statistics of durations; percentiles are by nearest rank."""

    count: int = value("number of durations", "things")
    mean: float = value("mean", "s")
    p50: float = value("median", "s")
    p90: float = value("90th percentile", "s")
    p99: float = value("99th percentile", "s")
    max: float = value("maximum", "s")


@record
class Percentiles(Record):
    """Statistics of durations by kind; null for kinds that did not occur or were not recorded."""

    step_time: Statistics | None = value("whole steps in the window", default=None)
    data_wait: Statistics | None = value("waits for a batch in these steps", default=None)
    compute: Statistics | None = value("compute of these steps", default=None)
    sync: Statistics | None = value("sync of these steps", default=None)
    checkpoint: Statistics | None = value("checkpoints of a rank, whole run", default=None)
    evaluate: Statistics | None = value("evaluations of a rank, whole run", default=None)
    read: Statistics | None = value("reads of a training batch that ended in the window", default=None)
    decode: Statistics | None = value("decodes of a training batch that ended in the window", default=None)
    collate: Statistics | None = value("always null: a key of version 0.1 that was never recorded", default=None)
    write: Statistics | None = value("writes of a checkpoint file, whole run", default=None)
    fsync: Statistics | None = value("waits until a checkpoint file is durable, whole run", default=None)


@record
class Evaluation(Record):
    """The finished evaluations."""

    au: Number = value("Σ compute / Σ time of evaluations, mean over ranks", "fraction")
    au_min: Number = value("the lowest of a rank", "fraction")
    au_max: Number = value("the highest of a rank", "fraction")
    data_wait_share: Number = value("waiting for batches, of the time of evaluations", "fraction")
    rounds: int = value("evaluations of the rank with the most", "evaluations")
    steps: int = value("steps of all ranks in evaluations", "steps")
    mean_seconds: float = value("mean time of a rank for an evaluation", "s")


@record
class Rank(Record):
    """A rank: its AU in the window, and the wall time of the run in parts."""

    rank: int = value("number of the rank")
    au: Number = value("Σ compute / Σ step time over whole steps in the window", "fraction")
    steps: int = value("completed steps", "steps")
    wall: Number = value("from the run's begin to the rank's end: the sum of its parts without `ended`", "s")
    startup: Number = value("until the first batch is requested", "s", default=None)
    restore: Number = value("reading back a checkpoint", "s", default=None)
    gap: Number = value("the pause of checkpoint.phases", "s", default=None)
    data_wait: Number = value("exposed data loading: waiting for batches", "s", default=None)
    device_copy: Number = value("batches on their way to accelerators", "s", default=None)
    bubble: Number = value("pipeline stages without a microbatch", "s", default=None)
    compute: Number = value("computing, as requested", "s", default=None)
    sync: Number = value("waiting for slower ranks, and all-reduce", "s", default=None)
    drain_wait: Number = value("waiting until the burst tier is drained", "s", default=None)
    checkpoint: Number = value("blocked by checkpoints", "s", default=None)
    evaluate: Number = value("evaluating", "s", default=None)
    restart: Number = value("lost to failures", "s", default=None)
    other: Number = value("overhead of the emulator", "s", default=None)
    ended: Number = value("after the rank's end, until the last rank's", "s", default=None)


@record
class TraceCounts(Record):
    """Counts of the run's spans."""

    level: str = value("trace.level of the scenario")
    resolution: str = value("trace.resolution of the scenario")
    recorded: int = value("recorded spans", "spans")
    stored: int = value("spans in the run directory", "spans")
    exported: int | None = value("spans accepted by a collector during the run", "spans", can_be_absent=True)
    not_selected: int | None = value("spans of steps outside --select", "spans", can_be_absent=True)


@record
class Books(Record):
    """The ledger: samples of training and evaluation, once for each rank that reads them."""

    planned_steps: int = value("planned steps", "steps")
    planned_samples: int = value("planned samples", "samples")
    delivered_steps: int = value("delivered batches", "steps")
    delivered_samples: int = value("delivered samples", "samples")
    delivered_bytes: int = value("bytes of the delivered samples", "bytes")
    skipped_steps: int | None = value("always 0, only in files of version 0.1", "steps", can_be_absent=True)
    skipped_samples: int | None = value(
        "samples skipped after errors (storage.faults.on_error=skip): planned = delivered + skipped",
        "samples", can_be_absent=True,
    )  # fmt: skip
    contents_verified: bool | None = value(
        "false if files of other programs were read (dataset.external): their names, sizes and numbers of samples are "
        "verified, contents only as far as their format has checksums", can_be_absent=True,
    )  # fmt: skip
    redone_steps: int | None = value(
        "batches that were delivered again after failures, and count once", "steps", can_be_absent=True
    )
    differences: tuple[str, ...] = value("a sentence for each rank with a difference, at most 16", default=())
    even: bool | None = value(
        "true if all planned samples were delivered exactly once, or skipped; null if the run failed"
    )

    @property
    def share_done(self) -> float | None:
        """The delivered share of the planned steps; None if none were planned."""
        return self.delivered_steps / self.planned_steps if self.planned_steps else None


@record
class LostPoints(Record):
    """The losses of DLIO's AU, mean over ranks and epochs."""

    data_wait: float = value("waiting for the rank's own batch", "percent")
    bookkeeping: float = value("time between batch and end of compute that is not compute", "percent")
    barrier_skew: float = value("waiting at the barrier for the slowest rank", "percent")
    first_step_wait: float = value(
        "waiting at the barrier in the first step, whose own time the formula excludes", "percent"
    )
    unrecorded: float = value("unrecorded time between a step and the next", "percent")


@record
class ImportedEpoch(Record):
    """An epoch of imported results; AU and losses sum to 100, if there are files of ranks."""

    epoch: int = value("number of the epoch, from 1 as in DLIO")
    au: Number = value("AU by DLIO's formula, mean over ranks; as published in a reduced import", "percent")
    data_wait: Number = value("waiting for the rank's own batch", "percent")
    bookkeeping: Number = value("time between batch and end of compute that is not compute", "percent")
    barrier_skew: Number = value("waiting at the barrier for the slowest rank", "percent")
    first_step_wait: Number = value(
        "waiting at the barrier in the first step, whose own time the formula excludes", "percent"
    )
    unrecorded: Number = value("unrecorded time between a step and the next", "percent")
    published_au: Number = value("published AU", "percent")
    seconds: Number = value("length of its blocks on rank 0", "s", can_be_absent=True)
    samples_per_second: Number = value("published throughput", "samples/s", can_be_absent=True)
    step_seconds: Number = value(
        "mean time of a step after the first: the configured compute, divided by AU", "s", can_be_absent=True
    )
    first_step_seconds: Number = value(
        "the first step and the start of the loader: the rest of the epoch's length", "s", can_be_absent=True
    )
    checkpoint_seconds: Number = value("checkpoints of rank 0", "s", can_be_absent=True)


@record
class ReducedImport(Record):
    """The sources of an import without files of ranks: AU and throughput are as published, steps are unknown."""

    files: tuple[str, ...] = value("files read")
    lacks: tuple[str, ...] = value("missing numbers and their files, a sentence each")


@record
class ImportedTransfers(Record):
    """Checkpoints of imported results, written or read back."""

    number: int | None = value("checkpoints; null if only their mean was published", "things")
    seconds: Number = value("mean time of rank 0, as published", "s")
    seconds_stdev: Number = value("its standard deviation (population)", "s")
    mib_per_second: Number = value("bytes of all ranks over rank 0's time, mean as published", "MiB/s")
    mib_per_second_stdev: Number = value("its standard deviation (population)", "MiB/s")
    all_ranks_seconds: Number = value(
        "mean time from the first rank's start to the last rank's end; null without files of all ranks", "s"
    )


@record
class Imported(Record):
    """Imported results: published AU, AU from the records, and losses; of checkpoints their times and rates."""

    au: Number = value(
        "AU by DLIO's formula from the records, mean over epochs; as published in a reduced import; null without "
        "training",
        "percent",
    )
    published_au: Number = value("published AU", "percent")
    lost_points: LostPoints | None = value("losses; null in a reduced import")
    epochs: tuple[ImportedEpoch, ...] = value("the same by epoch")
    reduced: ReducedImport | None = value("sources of a reduced import", can_be_absent=True)
    checkpoint_bytes: Number = value("published bytes of a checkpoint, all ranks", "bytes", can_be_absent=True)
    saved: ImportedTransfers | None = value("checkpoints written", can_be_absent=True)
    restored: ImportedTransfers | None = value("checkpoints read back", can_be_absent=True)

    @property
    def has_no_steps(self) -> bool:
        """True if there is only what was published: no times of steps."""
        return self.au is None or self.reduced is not None


@record
class Between(Record):
    """The interval of a prediction, from the ranges of its costs (``costs.cpu.at_most``, ``costs.error`` ...)."""

    time_low: float = value("shortest time, of the predicted time", "fraction")
    time_high: float = value("longest time, of the predicted time", "fraction")
    au_low: Number = value("lowest AU; null without compute", "fraction")
    au_high: Number = value("highest AU; null without compute", "fraction")

    def rates(self, rate: float) -> tuple[float, float]:
        """Return the lowest and the highest of a throughput, of which ``rate`` is predicted."""
        return rate / self.time_high, rate / self.time_low


@record
class RunResult(Record):
    """The result of a run, or of an imported run of another benchmark: ``result.json``, version 2."""

    worded_by = "rayio.report.text.summary:summary"

    version: int = value("version of this schema", default=VERSION)
    engine: str = value("ray, local, virtual, or dlio for imported results", default="unknown")
    scenario: str = value("name of the scenario", default="run")
    exit_code: int = value(
        "0 done, 1 bug, 2 bad input, 3 expect: unmet, 4 samples not delivered exactly once, 130 interrupted",
        default=0,
        is_required=True,
    )
    error: str | None = value("reason of an exit code other than 0", default=None)
    au: Number = value("accelerator utilisation: Σ compute / Σ step time in the window, mean over ranks", "fraction")
    au_min: Number = value("the lowest AU of a rank", "fraction")
    au_max: Number = value("the highest AU of a rank", "fraction")
    au_interval_low: Number = value(
        "lower end of the 95 % interval of AU, by batch means over at least 10 steps", "fraction", default=None
    )
    au_interval_high: Number = value("upper end of the 95 % interval of AU", "fraction", default=None)
    window_seconds: Number = value(
        "length of the window: from all ranks warm to the end of the last step that all share, with the pause after "
        "it; in version 1 until the first rank is done",
        "s",
    )
    window_steps: int | None = value("whole steps in the window, of the rank with the fewest", "steps")
    window_epochs: int | None = value("epochs of these steps", "epochs", default=None)
    samples_per_second: Number = value(
        "samples of the batches delivered in the window, all ranks, with those that storage.faults skipped. The ranks "
        "of a divided model count a sample once, but its bytes each. After failures from the first step of the run to "
        "the window's end, lost time included",
        "samples/s",
    )
    mib_per_second: Number = value(
        "bytes read for the batches delivered in the same time as `samples_per_second`", "MiB/s"
    )
    data_wait_share: Number = value("exposed data loading, of step time in the window", "fraction")
    sync_share: Number = value("waiting for slower ranks and all-reduce, of step time in the window", "fraction")
    checkpoint_share: Number = value("blocked by checkpoints, of step time in the window", "fraction")
    evaluate_share: Number = value("evaluating, of step time in the window", "fraction")
    device_copy_share: Number = value(
        "batches on their way to accelerators, of step time in the window", "fraction", can_be_absent=True
    )
    bubble_share: Number = value(
        "pipeline stages without a microbatch, of step time in the window", "fraction", can_be_absent=True
    )
    drain_wait_share: Number = value(
        "waiting until the burst tier is drained, of step time in the window", "fraction", can_be_absent=True
    )
    other_share: Number = value("overhead, of step time in the window; with AU these shares sum to 1", "fraction")
    goodput: Number = value("compute that counts, of the wall time of all planned ranks", "fraction")
    wall_seconds: Number = value("from the first rank's start to the last rank's end", "s")
    world_size: int = value("planned ranks", "ranks", default=0)
    ranks_of_sample: int | None = value(
        "ranks that read each sample: those of one replica of a divided model", "ranks", can_be_absent=True
    )
    steps: int | None = value("completed steps, all ranks", "steps")
    startup_skew_seconds: Number = value("time between the first waits of the first and the last rank", "s")
    au_dlio: Number = value("AU by DLIO's formula, mean over epochs", "percent")
    au_dlio_stdev: Number = value("its standard deviation over epochs (population)", "percent")
    samples_per_second_dlio: Number = value("throughput by DLIO's formula, mean over epochs", "samples/s")
    samples_per_second_dlio_stdev: Number = value("its standard deviation over epochs (population)", "samples/s")
    time: Seconds = value("wall time of all ranks")
    share: Shares = value("the same as fractions")
    evaluation: Evaluation | None = value("evaluations; null without", default=None)
    percentiles: Percentiles = value("statistics of durations")
    ranks: tuple[Rank, ...] = value("ranks, at most the first 64", default=())
    notes: tuple[str, ...] = value("notes on the numbers, a sentence each")
    remarks: tuple[Remark, ...] | None = value(
        "those of the notes that come from spans, as code and numbers", can_be_absent=True
    )
    doubts: tuple[Doubt, ...] | None = value(
        "reasons not to act on some numbers; null in results of older versions", can_be_absent=True
    )
    trace: TraceCounts | None = value("counts of spans", can_be_absent=True)
    ledger: Books | None = value("planned and delivered samples", can_be_absent=True)
    fetched: Fetched | None = value(
        "sources of the bytes read, for real storage or modelled storage with storage.cache", can_be_absent=True
    )
    saved: Transfers | None = value("throughput of checkpoints written", can_be_absent=True)
    restored: Transfers | None = value("throughput of checkpoints read back", can_be_absent=True)
    drained: Draining | None = value("checkpoints drained from a burst tier", can_be_absent=True)
    hosts: tuple[Host, ...] | None = value("hosts of workers, ranks and writers with real storage", can_be_absent=True)
    dropped_samples_per_epoch: int | None = value(
        "samples not read because of drop_last", "samples", can_be_absent=True
    )
    capped_samples_per_epoch: int | None = value(
        "samples not read because of train.steps; of unequal epochs their mean", "samples", can_be_absent=True
    )
    imported: Imported | None = value("imported results", can_be_absent=True)
    loader_share: Number = value(
        "waits for loader overhead, of step time in the window; only in predictions with a loader overhead model",
        "fraction",
        can_be_absent=True,
    )
    between: Between | None = value("interval of a prediction, if its costs have ranges", can_be_absent=True)
    scaling: Scaling | None = value(
        "changes of the number of workers, if loader.num_workers is {min, max}", can_be_absent=True
    )
    failures: Survived | None = value("failures that the run survived; absent without any", can_be_absent=True)
    workflow: Workflow | None = value("processes of the stages; absent without any", can_be_absent=True)
    origin: Origin | None = value("measured, predicted or imported, and the models used", can_be_absent=True)


def read_result(content: Mapping[str, Any], where: object) -> RunResult:
    """Return the result in the parsed JSON of the file ``where``.

    Raises:
        StorageError: an unreadable version, or a key is missing or has another type.
    """
    if content.get("version") not in READABLE:
        raise StorageError(f"{where} has version {content.get('version')!r}; read it with the rayio that wrote it")
    try:
        result = RunResult.of_json(content)
        return result if result.origin else replace(result, origin=of_old(result.engine))
    except DamagedRecordError as error:
        raise StorageError(f"{where} is damaged: {error}") from None
