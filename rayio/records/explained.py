"""What ``rayio explain --json`` prints, field by field; its schema is what ``rayio schema explain`` prints."""

from __future__ import annotations

from dataclasses import dataclass

from rayio.records.hosts import Fetched
from rayio.records.origin import Origin
from rayio.records.record import Record, value
from rayio.records.run_result import Imported, Number

#: Version of what ``rayio explain --json`` prints.
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRow(Record):
    """What one cause took of the step time that counts; with the AU, the shares of all causes sum to 1."""

    cause: str = value(
        "a stage of a batch, or straggler, allreduce, checkpoint, evaluate, startup, other; data_wait of imports"
    )
    seconds: float = value("step time lost to it, of all ranks together", "s")
    share: Number = value("the same, of step time, mean over ranks", "fraction")
    waiting_seconds: float = value("lost directly", "s")
    by_sync_seconds: float = value("lost through waiting for other ranks", "s")
    meaning: str = value("what the cause is")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Record):
    """What bound the run: every nanosecond of the steps that count, charged once."""

    steps: int = value("steps that count, all ranks together", "steps")
    steps_per_rank: int = value("those of the rank with the fewest; below 10 there is no verdict", "steps", default=0)
    seconds: float = value("their length", "s")
    compute_seconds: float = value("the compute in them", "s")
    au: Number = value("compute, of step time, mean over ranks", "fraction")
    loss: Number = value("all losses together, of step time", "fraction")
    data_wait_share: Number = value("exposed data loading time, of step time", "fraction")
    first_step_share: Number = value("the part of it at the first step of an epoch", "fraction")
    is_input_bound: bool | None = value("whether exposed data loading is more than 5 % of step time")
    bound: str | None = value("what binds the run: input, loader, compute, straggler …; null of too few steps")
    bound_share: Number = value("what that takes of step time; null where compute binds", "fraction")
    cause: str | None = value(
        "the cause whose removal saves most time, where it was simulated; else the largest one of what binds; "
        "null where compute binds"
    )
    named_by: str = value("simulation, or share where none was made", default="share")
    ties: tuple[str, ...] = value("causes whose removal saves as much, within a tenth", default=())
    bounds: dict[str, float] = value("all that bind, by name, of step time", "fraction")
    target_au: Number = value(
        "AU that was asked for, by expect or by who explains; null of none", "fraction", default=None
    )
    is_worth_removing: bool | None = value(
        "whether what binds is worth removing: false where AU is at its target, where all of it is at most 5 %, or "
        "where no change that was simulated saves more than that; null without a verdict",
        default=None,
    )
    is_processor_bound: bool | None = value(
        "whether ranks wait for batches because readers and ranks wait for cores: twice the cores would save more than "
        "any setting; null where nobody knows what batches take of processors",
        default=None,
    )
    table: tuple[LossRow, ...] = value("the losses by cause")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Record):
    """What one stage of the workers can do, and did."""

    stage: str = value(
        "its name; storage is what all readers of modelled storage share, worker is all stages one after the other, "
        "writer writes checkpoint files, processors are the cores that all work shares, where that is known"
    )
    service_seconds: float = value(
        "mean time for a batch, or a checkpoint file; of modelled storage without queueing there, else as it was", "s"
    )
    parallelism: int = value("how many work at a time", "workers")
    capacity: float = value("what they could deliver if they did nothing else", "batches/s")
    utilisation: float = value("busy time in the window, of their time", "fraction")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageLimit(Record):
    """Which resource of a modelled storage is the limit, what it gives and what the ranks need; queueing is not in it.

    ``bandwidth``, ``requests``, ``opens`` and ``throttling`` (requests above a rate are refused) are shared by all
    readers; ``latency``, ``open latency`` and
    ``connections`` are what each reader waits for by itself: more readers, or more requests in flight, get more.
    """

    resource: str = value("bandwidth, requests, opens, throttling, latency, open latency or connections")
    gives: Number = value("what it lets through; null where nothing limits it", "batches/s")
    needs: Number = value("what the ranks would take if they never waited", "batches/s")
    is_short: bool | None = value("whether that is more than it gives; null where nobody knows what they need")
    shared_resource: str = value("the one of bandwidth, requests, opens and throttling that lets least through")
    shared_gives: Number = value("what that lets through, however many readers there are", "batches/s")
    readers_give: Number = value("what the readers get if they only read and never queue", "batches/s")
    systems: int = value("how many such systems there are: one for each node, or one for all")
    readers: int = value("readers of all ranks", "workers")
    depth: int = value("requests of one reader in flight", "requests")
    alone_seconds: float = value("mean time to read a batch where nobody else reads", "s")
    request_seconds: float = value("mean time to the first byte of a request", "s")
    open_seconds: float = value("mean time to open a file", "s")
    connection_bandwidth: float = value("rate of one request in flight", "bytes/s")
    batch_bytes: float = value("mean bytes that a batch asks for", "bytes")
    batch_requests: float = value("mean requests of a batch", "requests")
    batch_opens: float = value("mean files opened for a batch", "opens")
    others_bandwidth: float = value(
        "what checkpoints and evaluations took of it while ranks trained: not in what it gives", "bytes/s", default=0.0
    )
    others_requests: float = value("the same in requests; of throttling, in reads", "requests/s", default=0.0)
    others_opens: float = value("the same in files opened", "opens/s", default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity(Record):
    """What the stages can deliver, beside what the ranks ask for."""

    demand: Number = value("what the ranks would take if they never waited", "batches/s")
    delivered: float = value("what they got", "batches/s")
    has_readers: bool = value("whether readers are processes of their own; else ranks read for themselves")
    stages: tuple[Stage, ...] = value("the stages one by one")
    batch_bytes: Number = value(
        "mean bytes that were read for a batch; null where no span says so", "bytes", default=None
    )
    storage: StorageLimit | None = value(
        "what limits the storage, where it is a model; null of real storage, whose limits nobody knows", default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitedFor(Record):
    """One rank, as the others have to wait for it."""

    rank: int = value("its number")
    compute_seconds: float = value("mean compute of a step", "s")
    of_typical: Number = value("that, over the median rank's of those that are not slow", "ratio")
    sync_seconds: float = value("its own waiting for others", "s")
    last_share: Number = value("steps in which it computed longest", "fraction", default=None)
    is_slow: bool = value("whether that is most of them, and no chance", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Record):
    """The run simulated again, one thing changed."""

    change: str = value("what was changed")
    au: Number = value("AU of that simulation", "fraction")
    gain: Number = value("that, less the AU of the run simulated as it was", "fraction")
    causal_share: Number = value("the gain, of the loss of the run simulated as it was", "fraction")
    samples_per_second: Number = value("throughput of that simulation", "samples/s", default=None)
    time_saved: Number = value("time that it takes less than the run simulated as it was", "fraction", default=None)
    then: str = value("the largest cause of loss that is left, or compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated(Record):
    """The run lived again on the virtual clock with its own times, as it was and with one thing changed."""

    au: Number = value("AU of the run simulated as it was", "fraction")
    samples_per_second: Number = value("its throughput", "samples/s", default=None)
    steps: int = value("steps that count in it, all ranks together", "steps")
    is_whole_run: bool = value("whether it is the whole run; of a long one it is the first steps")
    changes: tuple[Change, ...] = value("the changes one by one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction(Record):
    """A cause that takes much of step time, and without which the simulated run is hardly shorter."""

    cause: str = value("the cause")
    share: float = value("what it takes of step time", "fraction")
    change: str = value("the change that takes it away, and saves most of those that do")
    time_saved: float = value("time that the simulated run then takes less", "fraction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(Record):
    """The first change worth making, simulated."""

    change: str = value("what to change, as a half sentence")
    workers: int | None = value("readers per rank, where that is the change", "workers", can_be_absent=True)
    au: Number = value("AU of that simulation", "fraction")
    time_saved: Number = value("time that it takes less than the run simulated as it was", "fraction", default=None)
    then: str = value("the largest cause of loss that is left, or compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved(Record):
    """Requests of one kind, and their bytes."""

    requests: int = value("how many", "requests")
    bytes: int = value("bytes that they moved", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth(Record):
    """Bytes per second of single requests, or of single batches at trace level batch."""

    mean: float = value("of all of them together", "bytes/s")
    p50: float = value("half were no faster", "bytes/s")
    p99: float = value("99 in a hundred were no faster", "bytes/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Record):
    """One kind of request to storage, over the whole run."""

    requests: int = value("how many", "requests")
    bytes: int = value("bytes that they moved", "bytes")
    seconds: float = value("how long they took, added up", "s")
    bytes_per_second: Bandwidth | None = value("how fast; null where nothing moved")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAccess(Record):
    """How storage was used for one rank."""

    rank: int = value("its number")
    wall_seconds: float = value("its wall time", "s")
    io_seconds: float = value("time with a request for it in flight", "s")
    exposed_seconds: float = value("the part of it in which it did not compute", "s")
    open: Moved | None = value("files opened for it", can_be_absent=True)
    read: Moved | None = value("reads for it", can_be_absent=True)
    write: Moved | None = value("writes for it", can_be_absent=True)
    fsync: Moved | None = value("waits for it until a file is durable", can_be_absent=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAccess(Record):
    """How one file was used."""

    file: str = value("its name")
    open: Moved | None = value("how often it was opened", can_be_absent=True)
    read: Moved | None = value("reads of it", can_be_absent=True)
    write: Moved | None = value("writes to it", can_be_absent=True)
    fsync: Moved | None = value("waits until it is durable", can_be_absent=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access(Record):
    """How storage was used; what needs spans of single requests is null at trace level batch."""

    level: str = value("io where single requests were recorded, else batch")
    operations: dict[str, Operation] = value("requests by kind: open, read, write, fsync; those that occurred")
    read_amplification: Number = value("bytes read per byte used", "ratio")
    time_share: Number = value("time with a request in flight, of the ranks' wall time", "fraction")
    exposed_share: Number = value("the part of it in which the rank did not compute", "fraction")
    ranks: tuple[RankAccess, ...] = value("the ranks one by one, at most the first 64")
    sizes: dict[str, dict[str, int]] = value("reads and writes counted by size, in Darshan's bins", "requests")
    sequential_share: Number = value(
        "requests at or after the end of the one before to that file", "fraction", default=None, is_required=True
    )
    consecutive_share: Number = value("requests exactly there", "fraction", default=None, is_required=True)
    num_files: int | None = value("files touched", "files", default=None, is_required=True)
    opens_per_file: Number = value(
        "mean number of opens of a file that was opened", "opens", default=None, is_required=True
    )
    most_opens_of_a_file: int | None = value(
        "opens of the file that was opened most", "opens", default=None, is_required=True
    )
    once_share: Number = value(
        "files opened once, of those that were opened", "fraction", default=None, is_required=True
    )
    files: tuple[FileAccess, ...] = value("the 64 files of which most was moved", default=(), is_required=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled(Record):
    """How storage refused reads as too many at a time (429, or S3's 503 SlowDown), over the whole run."""

    refused: int = value("attempts that it refused, each of which was made again", "requests")
    served: int = value("requests of reads that it served", "requests")
    answers: dict[str, int] = value("the refused attempts by what was answered", "requests")
    waited_seconds: float = value(
        "time from the begin of a refused attempt to that of the next one, of all workers together; of several at a "
        "time of one worker, once",
        "s",
    )
    read_seconds: float = value("time that workers were reading, those waits included", "s")
    read_share: Number = value("the waits, of that time", "fraction")
    data_wait_share: Number = value("the part of exposed data loading that is charged to the waits", "fraction")
    binds: bool = value("whether they are more than 5 % of reading, and ranks wait for storage: the sentence says it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(Record):
    """Why a run was as it was: what ``rayio explain --json`` prints, version 1."""

    version: int = value("version of this schema", default=VERSION)
    run: str = value("where the run directory is")
    scenario: str = value("name of the scenario")
    engine: str | None = value("ray, local, virtual, or dlio of imported results")
    sentence: str = value(
        "what bound the run, by how much, and what would come of mending it", default="", is_required=True
    )
    verdict: Verdict = value("every loss, charged once")
    capacity: Capacity = value("what each stage could do")
    ranks: tuple[WaitedFor, ...] = value("the ranks that others waited for most, at most 8")
    simulated: Simulated | None = value("the run simulated with one thing changed; null where it was not simulated")
    prediction: Prediction | None = value("the first change worth making; null where none is")
    access: Access = value("how storage was used")
    notes: tuple[str, ...] = value("what a reader of the numbers should know, a sentence each")
    throttled: Throttled | None = value(
        "how storage refused reads as too many at a time; null where it refused none", default=None
    )
    imported: Imported | None = value("what imported results say; null of other runs", default=None)
    contradictions: tuple[Contradiction, ...] | None = value(
        "causes whose removal, simulated, saves less than a quarter of their share; there where such a share is at "
        "least 10 %",
        can_be_absent=True,
    )
    fetched: Fetched | None = value(
        "where the bytes came from that readers of real storage read, or of modelled storage with storage.cache",
        can_be_absent=True,
    )
    origin: Origin | None = value(
        "whether the run was measured, predicted or imported, and which models it rests on", can_be_absent=True
    )
