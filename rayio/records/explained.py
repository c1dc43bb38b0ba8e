"""The output of ``rayio explain --json``; ``rayio schema explain`` prints its schema."""

from __future__ import annotations

from rayio.records.doubts import Doubt, Remark
from rayio.records.failures import Survived
from rayio.records.hosts import Fetched
from rayio.records.origin import Origin
from rayio.records.record import Record, record, value
from rayio.records.run_result import Imported, Number

VERSION = 1


@record
class LossRow(Record):
    """The step time lost to a cause; with the AU, the shares of all causes sum to 1."""

    cause: str = value(
        "a stage of a batch, or straggler, allreduce, checkpoint, evaluate, startup, other; data_wait for imports"
    )
    seconds: float = value("step time lost, all ranks", "s")
    share: Number = value("step time lost, mean over ranks", "fraction")
    waiting_seconds: float = value("time lost directly", "s")
    by_sync_seconds: float = value("time lost by waiting for other ranks", "s")
    meaning: str = value("meaning of the cause")


@record
class Verdict(Record):
    """The bottleneck of the run: every nanosecond of the counted steps is charged once."""

    steps: int = value("counted steps, all ranks", "steps")
    steps_per_rank: int = value(
        "counted steps of the rank with the fewest; below 10 there is no verdict", "steps", default=0
    )
    seconds: float = value("length of the counted steps", "s")
    compute_seconds: float = value("compute in the counted steps", "s")
    au: Number = value("compute, of step time, mean over ranks", "fraction")
    loss: Number = value("all losses, of step time", "fraction")
    first_batches_seconds: float = value(
        "waiting for batches before the counted steps, mean over ranks; in no other number here", "s", default=0.0
    )
    first_batches_share: Number = value("the same, of the wall time", "fraction", default=None)
    data_wait_share: Number = value("exposed data loading, of step time", "fraction")
    first_step_share: Number = value("exposed data loading in the first step of an epoch, of step time", "fraction")
    is_input_bound: bool | None = value("true if exposed data loading is more than 5 % of step time")
    bound: str | None = value("the bottleneck: input, loader, compute, straggler …; null with too few steps")
    bound_share: Number = value("loss to the bottleneck, of step time; null if compute-bound", "fraction")
    cause: str | None = value(
        "the cause whose removal saves most time if simulated, else the largest cause of the bottleneck; "
        "null if compute-bound"
    )
    named_by: str = value("source of the cause: simulation or share", default="share")
    ties: tuple[str, ...] = value("causes whose removal saves as much, within a tenth", default=())
    bounds: dict[str, float] = value("all bottlenecks by name, of step time", "fraction")
    target_au: Number = value("target AU, of expect: or of the caller; null without", "fraction", default=None)
    is_worth_removing: bool | None = value(
        "true if removing the bottleneck is worth it: AU is below its target, the loss is more than 5 %, and a "
        "simulated change saves more than that; null without a verdict",
        default=None,
    )
    is_processor_bound: bool | None = value(
        "true if ranks wait for batches because workers and ranks wait for cores: twice the cores would save more than "
        "any setting; null if the CPU time of batches is unknown",
        default=None,
    )
    table: tuple[LossRow, ...] = value("losses by cause")


@record
class Stage(Record):
    """The capacity and the use of a stage of the workers."""

    stage: str = value(
        "name; storage is the part that all workers share of modelled storage, worker is all stages in sequence, "
        "writer writes checkpoint files, processors are the shared cores, if known"
    )
    service_seconds: float = value(
        "mean time for a batch or a checkpoint file; without queueing for modelled storage, else as measured", "s"
    )
    parallelism: int = value("number working in parallel", "workers")
    capacity: float = value("possible rate of the stage alone", "batches/s")
    utilisation: float = value("busy share of their time in the window", "fraction")


@record
class StorageLimit(Record):
    """The limiting resource of modelled storage, without queueing.

    All workers share ``bandwidth``, ``requests``, ``opens`` and ``throttling`` (requests above a rate are refused).
    Each worker has its own ``latency``, ``open latency`` and ``connections``: more workers or more requests in flight
    get more.
    """

    resource: str = value("bandwidth, requests, opens, throttling, latency, open latency or connections")
    gives: Number = value("rate of the limiting resource; null without a limit", "batches/s")
    needs: Number = value("rate of ranks that never wait for batches or for slower ranks", "batches/s")
    is_short: bool | None = value("true if the ranks need more than the resource gives; null if unknown")
    shared_resource: str = value("the most limiting one of bandwidth, requests, opens and throttling")
    shared_gives: Number = value("rate of that resource, for any number of workers", "batches/s")
    readers_give: Number = value("rate of workers that only read and never queue", "batches/s")
    systems: int = value("number of storage systems: one per node, or one for all")
    readers: int = value("workers of all ranks", "workers")
    depth: int = value("requests in flight per worker", "requests")
    alone_seconds: float = value("mean time to read a batch without other reads", "s")
    request_seconds: float = value("mean time to the first byte of a request", "s")
    open_seconds: float = value("mean time to open a file", "s")
    connection_bandwidth: float = value("rate of a request in flight", "bytes/s")
    batch_bytes: float = value("mean bytes requested for a batch", "bytes")
    batch_requests: float = value("mean requests for a batch", "requests")
    batch_opens: float = value("mean files opened for a batch", "opens")
    others_bandwidth: float = value(
        "rate of checkpoints, evaluations and stages during training, subtracted from the resource's rate",
        "bytes/s",
        default=0.0,
    )
    others_requests: float = value("the same in requests; with throttling, in reads", "requests/s", default=0.0)
    others_opens: float = value("the same in files opened", "opens/s", default=0.0)


@record
class Capacity(Record):
    """The capacity of the stages and the demand of the ranks."""

    demand: Number = value(
        "rate of ranks that never wait for batches or for slower ranks; if it changes during the run, that while they "
        "wait",
        "batches/s",
    )
    delivered: float = value("rate delivered", "batches/s")
    has_readers: bool = value("true if workers are separate processes, false if ranks read")
    stages: tuple[Stage, ...] = value("stages")
    batch_bytes: Number = value("mean bytes read for a batch; null if not recorded", "bytes", default=None)
    storage: StorageLimit | None = value(
        "limit of modelled storage; null for real storage, whose limits are unknown", default=None
    )
    mean_demand: Number = value("demand over all steps; null if it does not change", "batches/s", default=None)
    delivered_late: Number = value(
        "rate delivered while ranks wait, where that is clearly lower than over the run; else null", "batches/s",
        default=None,
    )  # fmt: skip


@record
class WaitedFor(Record):
    """A rank that others wait for."""

    rank: int = value("number of the rank")
    compute_seconds: float = value("mean compute of a step", "s")
    of_typical: Number = value("mean compute, relative to the median of ranks that are not slow", "ratio")
    sync_seconds: float = value("time that it waits for others", "s")
    last_share: Number = value("share of steps in which it computes longest", "fraction", default=None)
    is_slow: bool = value(
        "true if it is last in most steps, alone or in turn with others that are as slow", default=False
    )
    slow_node: int | None = value("its node, if all ranks of that node are slow, and others are not", default=None)


LEFT_OUT = "samples of an epoch that loader.drop_last leaves out; absent if they are hardly more than in the run"


@record
class Change(Record):
    """A replay of the run with one change."""

    change: str = value("the change")
    au: Number = value("AU of the changed replay", "fraction")
    gain: Number = value("AU added to that of the unchanged replay", "fraction")
    causal_share: Number = value("the gain, as a share of the unchanged replay's loss", "fraction")
    samples_per_second: Number = value("throughput of the changed replay", "samples/s", default=None)
    time_saved: Number = value("time saved, of the unchanged replay's time", "fraction", default=None)
    then: str = value("the largest remaining cause of loss, or compute")
    left_out: Number = value(LEFT_OUT, "fraction", can_be_absent=True)
    is_short: bool | None = value(
        "true if simulated steps are too few for this change: its AU and throughput are those of the initial prefetch",
        can_be_absent=True,
    )


@record
class Simulated(Record):
    """Replays of the run on the virtual clock: unchanged, and with one change each."""

    au: Number = value("AU of the unchanged replay", "fraction")
    samples_per_second: Number = value("throughput of the unchanged replay", "samples/s", default=None)
    steps: int = value("counted steps of the unchanged replay, all ranks", "steps")
    is_whole_run: bool = value(
        "true if the whole run is replayed; only the first steps of a long run are without --whole"
    )
    changes: tuple[Change, ...] = value("the changes")
    first_steps: int | None = value("steps of a rank that are replayed", "steps", default=None)


@record
class Prediction(Record):
    """The simulated change that is worth making first."""

    change: str = value("the change, as a phrase")
    workers: int | None = value("workers per rank, if that is the change", "workers", can_be_absent=True)
    au: Number = value("AU with the change", "fraction")
    time_saved: Number = value("time saved, of the unchanged replay's time", "fraction", default=None)
    then: str = value("the largest remaining cause of loss, or compute")
    left_out: Number = value(LEFT_OUT, "fraction", can_be_absent=True)


@record
class Moved(Record):
    """Requests of one kind, and their bytes."""

    requests: int = value("number", "requests")
    bytes: int = value("bytes moved", "bytes")


@record
class Bandwidth(Record):
    """Bytes per second of single requests, or of single batches at trace level batch."""

    mean: float = value("total bytes over total time", "bytes/s")
    p50: float = value("median", "bytes/s")
    p99: float = value("99th percentile", "bytes/s")


@record
class Operation(Record):
    """Requests of one kind to storage, over the whole run."""

    requests: int = value("number", "requests")
    bytes: int = value("bytes moved", "bytes")
    seconds: float = value("sum of their durations", "s")
    bytes_per_second: Bandwidth | None = value("rates; null if nothing moved")


@record
class RankAccess(Record):
    """Storage access for a rank."""

    rank: int = value("number of the rank")
    wall_seconds: float = value("wall time of the run", "s")
    io_seconds: float = value("time with a request in flight", "s")
    exposed_seconds: float = value("time with a request in flight and without compute", "s")
    open: Moved | None = value("files opened for it", can_be_absent=True)
    read: Moved | None = value("reads for it", can_be_absent=True)
    write: Moved | None = value("writes for it", can_be_absent=True)
    fsync: Moved | None = value("waits for it until a file is durable", can_be_absent=True)


@record
class FileAccess(Record):
    """Access to a file."""

    file: str = value("name of the file")
    open: Moved | None = value("opens", can_be_absent=True)
    read: Moved | None = value("reads", can_be_absent=True)
    write: Moved | None = value("writes", can_be_absent=True)
    fsync: Moved | None = value("waits until it is durable", can_be_absent=True)


@record
class Access(Record):
    """Storage access; values that need spans of single requests are null at trace level batch."""

    level: str = value("io if single requests were recorded, else batch")
    operations: dict[str, Operation] = value("requests by kind: open, read, write, fsync")
    read_amplification: Number = value("bytes read per byte used", "ratio")
    time_share: Number = value("time with a request in flight, of the ranks' wall time", "fraction")
    exposed_share: Number = value("time with a request in flight and without compute, of the same", "fraction")
    ranks: tuple[RankAccess, ...] = value("ranks, at most the first 64")
    sizes: dict[str, dict[str, int]] = value("reads and writes by size, in Darshan's bins", "requests")
    sequential_share: Number = value(
        "requests at or after the end of the file's previous one", "fraction", default=None, is_required=True
    )
    consecutive_share: Number = value(
        "requests exactly at the end of the file's previous one", "fraction", default=None, is_required=True
    )
    num_files: int | None = value("files accessed", "files", default=None, is_required=True)
    opens_per_file: Number = value("mean opens of an opened file", "opens", default=None, is_required=True)
    most_opens_of_a_file: int | None = value("most opens of a file", "opens", default=None, is_required=True)
    once_share: Number = value("files opened once, of opened files", "fraction", default=None, is_required=True)
    files: tuple[FileAccess, ...] = value("the 64 files with most bytes moved", default=(), is_required=True)


@record
class Throttled(Record):
    """Reads that storage throttled (429, or S3's 503 SlowDown), over the whole run."""

    refused: int = value("refused attempts, each of which was retried", "requests")
    served: int = value("served reads", "requests")
    answers: dict[str, int] = value("refused attempts by answer", "requests")
    waited_seconds: float = value(
        "time from the start of a refused attempt to that of its retry, all workers; parallel ones of a worker count "
        "once",
        "s",
    )
    read_seconds: float = value("time of workers for reading, including these waits", "s")
    read_share: Number = value("the waits, of reading time", "fraction")
    data_wait_share: Number = value("the part of exposed data loading charged to the waits", "fraction")
    binds: bool = value("true if the waits are more than 5 % of reading and ranks wait for storage")


@record
class BrokeOff(Record):
    """The end of a run that did not finish."""

    exit_code: int | None = value("1 bug, 2 bad input or environment, 130 interrupted; null without a result")
    error: str = value("reason, with its remedy")
    done_share: Number = value("completed steps, of the planned steps", "fraction")


@record
class Explained(Record):
    """The explanation of a run: the output of ``rayio explain --json``, version 1."""

    worded_by = "rayio.report.text.explanation:text"

    version: int = value("version of this schema", default=VERSION)
    run: str = value("path or address of the run directory")
    scenario: str = value("name of the scenario")
    engine: str | None = value("ray, local, virtual, or dlio for imported results")
    sentence: str = value("the bottleneck, its loss, and what would help", default="", is_required=True)
    verdict: Verdict = value("losses, each charged once")
    capacity: Capacity = value("capacity of each stage")
    ranks: tuple[WaitedFor, ...] = value("ranks that others waited for most, at most 8")
    simulated: Simulated | None = value("replays with one change each; null without replays")
    prediction: Prediction | None = value("the first change worth making; null if none is")
    access: Access = value("storage access")
    notes: tuple[str, ...] = value("notes on the numbers, a sentence each", default=(), is_required=True)
    remarks: tuple[Remark, ...] = value("the notes of the analysis, as code and numbers", default=())
    throttled: Throttled | None = value("throttled reads; null without", default=None)
    imported: Imported | None = value("imported results; null for other runs", default=None)
    doubts: tuple[Doubt, ...] = value("reasons not to act on some numbers", default=())
    withheld: tuple[str, ...] = value("codes of the doubts because of which no change is advised", default=())
    fetched: Fetched | None = value(
        "sources of the bytes read, for real storage or modelled storage with storage.cache", can_be_absent=True
    )
    failures: Survived | None = value(
        "failures that the run survived, in no other number here; absent without any", can_be_absent=True
    )
    origin: Origin | None = value("measured, predicted or imported, and the models used", can_be_absent=True)
    broke_off: BrokeOff | None = value("end of a run that did not finish; absent for others", can_be_absent=True)
    has_edited_keys: bool = value(
        "true if scenario.yaml was edited after the run, and its edited keys are the only ones known", default=False
    )
