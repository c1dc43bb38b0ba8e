"""The scenario: WHAT to emulate, as sections of plain values. Text and units end here; inside are bytes and seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, GetJsonSchemaHandler, Tag, model_validator
from pydantic.functional_validators import BeforeValidator
from pydantic_core import CoreSchema

from rayio.scenario.decode import Decode
from rayio.scenario.distribution import BytesDistribution, Constant, SecondsDistribution
from rayio.scenario.expect import Expect, Expectations
from rayio.scenario.fields import (
    Bytes,
    Flag,
    Name,
    Natural,
    NotYetError,
    Positive,
    Rate,
    Reads,
    RefusedError,
    Seconds,
    Section,
    Text,
    choice,
    listed,
    quantity,
    refusal,
    whole,
)
from rayio.scenario.phases import MODELLED, Evaluate, EvaluationDataset, Every, Path
from rayio.scenario.stragglers import Stragglers
from rayio.storage.stores import Settings
from rayio.units import BYTES, RATE

NO_TIME = Constant(value=0.0)


class Cluster(Section):
    """Where the roles live."""

    nodes: Positive = 1
    ranks_per_node: Positive = 1
    #: Roles of one kind on one node that share one actor; as threads, the readers of a rank are one of them.
    roles_per_actor: Annotated[int | Literal["auto"], whole(1, or_word="auto")] = "auto"
    placement: Annotated[
        Literal["colocated", "spread"], choice("colocated", "spread", later=("dedicated_readers",))
    ] = "colocated"
    #: Seconds within which every actor must have started.
    start_deadline: Seconds = 120.0


MAX_CHUNK_BYTES = 1 << 32

_FORMATS_NOT_YET = (
    "parquet", "jpeg", "png", "csv", "npy", "indexed_binary", "mmap_indexed_binary",
)  # fmt: skip


class Dataset(Section):
    """The files to read. ``sample_bytes`` is drawn once per file; all samples of a file are of that size."""

    keys_not_yet = frozenset({"compression", "row_group"})
    path: Path
    format: Annotated[Literal["npz", "hdf5", "tfrecord"], choice("npz", "hdf5", "tfrecord", later=_FORMATS_NOT_YET)] = (
        "npz"
    )
    num_files: Positive
    samples_per_file: Positive = 1
    sample_bytes: BytesDistribution
    #: The most bytes of a chunk of hdf5: whole samples, or an even part of one; none is contiguous.
    chunk: Annotated[int | None, quantity(BYTES, positive=True, integer=True, or_none=True)] = None
    #: Files that ``train.evaluate`` reads.
    eval: EvaluationDataset = EvaluationDataset()

    @model_validator(mode="after")
    def _has_chunks_where_there_can_be(self) -> Self:
        if self.chunk is not None and self.format != "hdf5":
            raise refusal(RefusedError(f"only hdf5 has chunks, not {self.format}", "chunk", self.chunk))
        if self.chunk is not None and self.chunk >= MAX_CHUNK_BYTES:
            raise refusal(RefusedError("must be less than 4 GiB, which is HDF5's limit", "chunk", self.chunk))
        return self

    @property
    def is_modelled(self) -> bool:
        """Whether there are no bytes anywhere, so that only the storage model can serve."""
        return self.path.startswith(MODELLED)


def _per_second(value: Any) -> float | None:
    if value is None or value == "none":
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise RefusedError("must be a number per second, greater than 0, or none")
    return float(value)


_PER_SECOND_SCHEMA = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "none"}, {"type": "null"}]}


class StorageParameters(Section):
    """A modelled storage system: times per request and per file opened, caps per connection and per ``scope``."""

    #: Seconds from a request to its first byte, and to open a file.
    first_byte: SecondsDistribution
    open: SecondsDistribution = NO_TIME
    #: Bytes per second of one request in flight.
    connection_bandwidth: Rate
    #: Bytes per second of everything within ``scope`` together.
    bandwidth: Rate
    requests_per_second: Annotated[float | None, Reads(_per_second, _PER_SECOND_SCHEMA)] = None
    #: In place of ``requests_per_second``: what a metadata server does.
    opens_per_second: Annotated[float | None, Reads(_per_second, _PER_SECOND_SCHEMA)] = None
    scope: Annotated[Literal["node", "cluster"], choice("node", "cluster")] = "node"


def _name_or_parameters(value: Any) -> Any:
    if isinstance(value, (Mapping, StorageParameters)) or (isinstance(value, str) and value.strip()):
        return value
    raise refusal(RefusedError("must be the name of a preset, such as nvme, or a mapping of parameters"))


class Storage(Section):
    """What ``simulate`` uses as storage, and how real storage is to be used."""

    #: The name of a preset (checked where presets are known), or its parameters.
    model: Annotated[
        Annotated[str, Tag("name")] | Annotated[StorageParameters, Tag("parameters")],
        Discriminator(lambda value: "name" if isinstance(value, str) else "parameters"),
        BeforeValidator(_name_or_parameters),
    ] = "nvme"
    direct: Annotated[Literal[False], choice(False, later=(True,))] = False
    cache: Annotated[Literal["none"], choice("none", later=(list, Mapping))] = "none"
    stage: Annotated[Literal[False], choice(False, later=(True,))] = False
    faults: Annotated[Literal["none"], choice("none", later=(list, Mapping))] = "none"

    @property
    def settings(self) -> Settings:
        """How real storage is reached."""
        return Settings()


class Loader(Section):
    """How batches are made: PyTorch's words, PyTorch's meaning."""

    keys_not_yet = frozenset({"parallel_calls", "pin_memory"})
    kind: Annotated[Literal["actors"], choice("actors", later=("torch", "ray_data", "tf_data"))] = "actors"
    #: Samples per rank and step.
    batch_size: Positive = 1
    #: Readers per rank; with 0 the rank reads by itself.
    num_workers: Annotated[int, whole(0, range_later=True)] = 4
    prefetch_factor: Positive = 2
    #: Whether each reader is a process (an actor), or those of a rank are threads of one.
    worker: Annotated[Literal["process", "thread"], choice("process", "thread")] = "process"
    #: Requests in flight within one worker.
    io_depth: Positive = 1
    assignment: Annotated[Literal["static", "dynamic"], choice("static", "dynamic")] = "static"
    in_order: Flag = True
    shuffle: Annotated[
        Literal["none", "file", "block", "buffer", "global"], choice("none", "file", "block", "buffer", "global")
    ] = "global"
    #: Samples of a block (shuffle: block) and of the buffer (shuffle: buffer); they have no default.
    shuffle_block: Annotated[int | None, whole(1, or_none=True)] = None
    shuffle_buffer: Annotated[int | None, whole(1, or_none=True)] = None
    #: Whether ranks share the samples, in runs or dealt out in turn, or each reads all of them in the same order.
    partition: Annotated[
        Literal["contiguous", "strided", "replicated"], choice("contiguous", "strided", "replicated")
    ] = "contiguous"
    #: Whether ``dataset.num_files`` is of the whole dataset, or of each rank's part (see ``derive.num_files``).
    scaling: Annotated[Literal["strong", "weak"], choice("strong", "weak")] = "strong"
    file_access: Annotated[
        Literal["per_sample"], choice("per_sample", later=("whole_file", "in_memory", "collective", Mapping))
    ] = "per_sample"
    #: Seconds per sample, slept; or work that is really done on its bytes.
    decode: Decode = NO_TIME
    #: Whether samples that fill no whole batch on every rank are left out, or read as a smaller last batch.
    drop_last: Flag = True
    #: Bytes read and not yet consumed, per node; auto is 30 % of the object store.
    max_bytes_in_flight: Annotated[
        int | Literal["auto"], quantity(BYTES, positive=True, integer=True, or_word="auto")
    ] = "auto"
    #: Whether the bytes travel to the rank; auto is real with real storage and none with modelled storage.
    payload: Annotated[Literal["auto", "real", "none"], choice("auto", "real", "none")] = "auto"


class NoSync(Section):
    """Ranks do not wait for each other."""

    kind: Literal["none"] = "none"


class Barrier(Section):
    """Every step ends when the slowest rank's does."""

    kind: Literal["barrier"] = "barrier"


class AllReduce(Section):
    """A barrier and then a ring all-reduce of ``bytes`` (see ``derive.allreduce_seconds``)."""

    kind: Literal["allreduce"] = "allreduce"
    bytes: Annotated[int, quantity(BYTES, integer=True)]
    #: Bytes per second of one link of the ring.
    bandwidth: Rate
    #: Seconds per message.
    latency: Seconds = 0.0


SYNCS = ("none", "barrier", "allreduce")


def _sync(value: Any) -> Any:
    if isinstance(value, Section):
        return value
    if isinstance(value, str) and value in SYNCS:
        return {"kind": value}
    if isinstance(value, Mapping):
        kind = value.get("kind")
        if kind in SYNCS:
            return value
        if kind is not None:
            raise refusal(RefusedError(f"must be {listed(SYNCS)}", "kind", kind))
    elif value is False:
        raise refusal(RefusedError("write none (YAML reads off and no as false)"))
    raise refusal(RefusedError("must be none, barrier or {kind: allreduce, bytes: ..., bandwidth: ..., latency: ...}"))


class _OrName:
    """Annotation: in the JSON Schema, a kind without parameters may be written as its name alone."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"enum": ["none", "barrier"]}, handler(core)]}


Sync = Annotated[NoSync | Barrier | AllReduce, Field(discriminator="kind"), BeforeValidator(_sync), _OrName]


def _or_none(value: Any) -> Any:
    return None if value == "none" else value


class Train(Section):
    """What a rank does with a batch."""

    epochs: Positive = 1
    #: Cap on the steps of an epoch.
    steps: Annotated[int | None, whole(1, or_none=True)] = None
    #: Seconds per step, drawn per rank.
    compute: SecondsDistribution
    stragglers: Annotated[Stragglers | None, BeforeValidator(_or_none)] = None
    sync: Sync = Barrier()
    device_copy: Annotated[Literal["none"], choice("none", later=(Mapping,))] = "none"
    #: What tries the model on ``dataset.eval``, and when; none is never.
    evaluate: Annotated[Evaluate | None, BeforeValidator(_or_none)] = None
    #: First steps of each rank that no number counts.
    warmup_steps: Natural = 1


class ModelState(Section):
    """What a checkpoint holds."""

    keys_not_yet = frozenset({"layers", "hidden", "parallelism"})
    bytes: Bytes


class Dedicated(Section):
    """A number of writers of their own, each with its share of the state."""

    dedicated: Positive


def _writers(value: Any) -> Any:
    if isinstance(value, Dedicated) or value in ("rank_zero", "all_ranks"):
        return value
    if value == "sharded":
        raise NotYetError("sharded")
    if isinstance(value, Mapping) and [*value] == ["dedicated"]:
        number = value["dedicated"]
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise RefusedError("must be a whole number of at least 1", "dedicated", number)
        return Dedicated(dedicated=number)
    raise RefusedError("must be rank_zero, all_ranks or {dedicated: n}")


_WRITERS_SCHEMA = {
    "anyOf": [
        {"enum": ["rank_zero", "all_ranks"]},
        {
            "type": "object",
            "properties": {"dedicated": {"type": "integer", "minimum": 1}},
            "additionalProperties": False,
        },
    ]
}


class Checkpoint(Section):
    """What is saved, when, by whom. ``rank_zero`` and ``{dedicated: n}`` save one state, ``all_ranks`` one each."""

    every: Every
    path: Path
    model: ModelState
    writers: Annotated[Literal["rank_zero", "all_ranks"] | Dedicated, Reads(_writers, _WRITERS_SCHEMA)] = "rank_zero"
    asynchronous: Annotated[Literal[False], choice(False, later=(True,))] = False
    fsync: Flag = True
    #: Bytes per write request.
    request_bytes: Bytes = 4 << 20


class Trace(Section):
    """How finely spans are recorded.

    ``none``: the ranks' lives only. ``step``: the ranks' spans. ``batch``: every role's. ``sample``: besides, one span
    per sample read. ``io``: besides those of ``batch``, one span per request to storage.
    """

    level: Annotated[
        Literal["none", "step", "batch", "sample", "io"], choice("none", "step", "batch", "sample", "io")
    ] = "batch"
    #: What times in spans are cut down to.
    resolution: Annotated[Literal["1 ns", "1 us"], choice("1 ns", "1 us")] = "1 ns"
    #: Whether Ray's methods that submit tasks and actors are wrapped, so that spans of what libraries submit are kept.
    tasks: bool = False

    @property
    def resolution_ns(self) -> int:
        """What times in spans are multiples of."""
        return 1 if self.resolution == "1 ns" else 1000

    @property
    def captures(self) -> bool:
        """Whether spans of other libraries (OpenTelemetry) are kept."""
        return self.level not in ("none", "step")

    @property
    def captures_tasks(self) -> bool:
        """Whether those of Ray tasks and actors that a library submits are kept too."""
        return self.captures and self.tasks

    @property
    def is_itemised(self) -> bool:
        """Whether storage has to give out each of its requests."""
        return self.level in ("sample", "io")


class Costs(Section):
    """What a real engine adds to each of these, in seconds per call; the virtual engine charges them."""

    #: From when the window lets a step begin to when its reader has the lease; a busy reader hides it.
    lease: Seconds = 0.0
    #: What a lease keeps its reader busy for beyond reading and decoding.
    put: Seconds = 0.0
    #: From when a reader is done to when its rank has the batch; a rank that still computes hides it.
    take: Seconds = 0.0
    transfer_latency: Seconds = 0.0
    #: Bytes per second from a reader to its rank; none is free.
    transfer_bandwidth: Annotated[float | None, quantity(RATE, positive=True, or_none=True)] = None
    #: From the last announcement of a step to its answer; the compute hides it.
    barrier: Seconds = 0.0
    #: What every step takes its rank beyond all that is asked for: late wake-ups, messages.
    step: Seconds = 0.0
    #: What a checkpoint takes its rank beyond what the model of storage says: messages, fsync.
    checkpoint: Seconds = 0.0


class Scenario(Section):
    """One workload on one cluster: everything that a run depends on."""

    name: Name
    #: Where the numbers come from.
    source: Text = ""
    seed: Natural = 10
    cluster: Cluster = Cluster()
    dataset: Dataset
    storage: Storage = Storage()
    loader: Loader = Loader()
    train: Train
    checkpoint: Annotated[Checkpoint | None, BeforeValidator(_or_none)] = None
    trace: Trace = Trace()
    expect: Expect = Field(default_factory=Expectations)
    costs: Costs = Costs()

    #: Sections by name, for messages and for ``show``.
    SECTIONS: ClassVar[tuple[str, ...]] = (
        "cluster", "dataset", "storage", "loader", "train", "checkpoint", "trace", "expect", "costs",
    )  # fmt: skip
