"""The section ``loader``: how batches are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from rayio.kinds import ACCESSES, LOADERS, PARTITIONS, SHUFFLES
from rayio.scenario.decode import Decode
from rayio.scenario.turns import BY_FILE
from rayio.scenario.turns import SHUFFLES as SHUFFLES_BY_FILE
from rayio.scenario.workers import NumWorkers, most
from rayio.schema.choice import NO_OPTIONS, Choice, Choosing, OptionsOf, named
from rayio.schema.distribution import NO_TIME
from rayio.schema.fields import Flag, Rate, Section, choice, quantity, whole
from rayio.units import BYTES, RATE

#: The most samples of a rank's step: each has at least one request with a drawn latency (``storage/model.py``).
MAX_BATCH = 1 << 20
MAX_WINDOW = 1 << 16
#: The most requests in flight of a worker: each is a thread.
MAX_DEPTH = 1024
#: Bytes per second of a copy in memory by one thread, of batches that no cache holds (docs/loaders.md).
PIN_BANDWIDTH = 7e9


class Loader(Choosing):
    """The loader of batches, in PyTorch's terms."""

    choices = (
        Choice("kind", LOADERS, "options"),
        Choice("shuffle", SHUFFLES, "shuffle_options", spare="unused_options"),
        Choice("partition", PARTITIONS, "partition_options"),
        Choice("file_access", ACCESSES, "file_access_options"),
    )
    keys_not_yet = frozenset({"parallel_calls"})
    kind: Annotated[str, named(LOADERS)] = Field("actors", description="What makes batches.")
    options: Annotated[Section, OptionsOf("kind", LOADERS)] = NO_OPTIONS
    batch_size: Annotated[int, whole(1, MAX_BATCH)] = Field(1, description="Samples per rank and step.")
    num_workers: NumWorkers = Field(
        4,
        description="Workers per rank; with 0 the rank reads by itself. As {min: ..., max: ...} they come and go with "
        "the load.",
    )
    prefetch_factor: Annotated[int, whole(1, MAX_WINDOW)] = Field(
        2, description="Batches that each worker may be ahead of its rank."
    )
    worker: Annotated[Literal["process", "thread"], choice("process", "thread")] = Field(
        "process",
        description="process: each worker is a process (an actor); thread: those of a rank are threads of one.",
    )
    io_depth: Annotated[int, whole(1, MAX_DEPTH)] = Field(
        1, description="Requests of a batch in flight within one worker."
    )
    assignment: Annotated[Literal["static", "dynamic", "by_file"], choice("static", "dynamic", "by_file")] = Field(
        "static",
        description="static: workers take batches in turn; dynamic: the first free worker takes the next batch; "
        "by_file: each worker owns files and makes batches of them.",
    )
    in_order: Flag = Field(True, description="If true, batches are delivered in order, else as they become ready.")
    queue: Annotated[Literal["actor", "in_rank"], choice("actor", "in_rank")] = Field(
        "actor",
        description="Where the prefetch queue of each rank lives: an actor, or the rank's process, which costs fewer "
        "messages and more of the rank's time.",
    )
    shuffle: Annotated[str, named(SHUFFLES)] = Field("global", description="Order in which an epoch visits samples.")
    shuffle_options: Annotated[Section, OptionsOf("shuffle", SHUFFLES)] = NO_OPTIONS
    #: Options of shuffles that were not chosen; a note reports them.
    unused_options: tuple[Section, ...] = ()
    partition: Annotated[str, named(PARTITIONS)] = Field(
        "contiguous",
        description="How ranks share the samples: in runs (contiguous), in turn (strided), or each reads all "
        "(replicated).",
    )
    partition_options: Annotated[Section, OptionsOf("partition", PARTITIONS)] = NO_OPTIONS
    scaling: Annotated[Literal["strong", "weak"], choice("strong", "weak")] = Field(
        "strong", description="strong: dataset.num_files counts the whole dataset; weak: each rank's part."
    )
    file_access: Annotated[str, named(ACCESSES)] = Field(
        "per_sample", description="How a worker walks files, and what it keeps of them from batch to batch."
    )
    file_access_options: Annotated[Section, OptionsOf("file_access", ACCESSES)] = NO_OPTIONS
    pin_memory: Flag = Field(
        False,
        description="If true, a thread of each rank's loader copies every batch into page-locked memory, one after "
        "another, as PyTorch does for GPUs.",
    )
    pin_bandwidth: Rate = Field(
        PIN_BANDWIDTH, description="Bytes per second of that copy, where no GPU is found and PyTorch copies nothing."
    )
    decode: Decode = Field(
        NO_TIME, description="Time per sample, slept by the worker; or work that is really done on its bytes."
    )
    decode_threads: Annotated[int, whole(1, MAX_DEPTH)] = Field(
        1, description="Threads of each worker that decode a batch's samples, each the next one."
    )
    drop_last: Flag = Field(
        True,
        description="If true, samples that fill no whole batch on every rank are left out, else they make a smaller "
        "one.",
    )
    max_bytes_in_flight: Annotated[
        int | Literal["auto"], quantity(BYTES, positive=True, integer=True, or_word="auto")
    ] = Field("auto", description="Bytes read and not yet consumed, per node; auto is 30 % of the object store.")
    payload: Annotated[Literal["auto", "real", "none"], choice("auto", "real", "none")] = Field(
        "auto",
        description="If real, the bytes travel to the rank; auto is real with real storage, none with modelled "
        "storage.",
    )

    @property
    def max_workers(self) -> int:
        """Workers of a rank; with autoscaling, the most."""
        return most(self.num_workers)

    def contradictions(self) -> Iterator[str]:
        """Refuse a prefetch window above the limit."""
        if (window := self.max_workers * self.prefetch_factor) > MAX_WINDOW:
            yield (
                f"loader.prefetch_factor={self.prefetch_factor}: with loader.num_workers={self.max_workers} a rank is "
                f"{window} batches ahead; at most {MAX_WINDOW} are possible"
            )
        if self.assignment == BY_FILE:
            yield from self._not_by_file()

    def _not_by_file(self) -> Iterator[str]:
        setting = f"loader.assignment={BY_FILE}"
        if self.shuffle not in SHUFFLES_BY_FILE:
            yield (
                f"{setting}: loader.shuffle={self.shuffle} mixes samples of all files; use loader.shuffle="
                f"{', '.join(SHUFFLES_BY_FILE[:-1])} or {SHUFFLES_BY_FILE[-1]}"
            )
        if not isinstance(self.num_workers, int):
            yield f"not yet: {setting} with workers that come and go; give loader.num_workers as a number"

    def idle(self) -> Iterator[str]:
        """Name keys of workers that do not exist, and options of shuffles that were not chosen."""
        if self.num_workers == 0 and self.prefetch_factor != type(self).model_fields["prefetch_factor"].default:
            yield f"loader.prefetch_factor={self.prefetch_factor}: nothing is prefetched with loader.num_workers=0"
        if self.decode_threads > 1 and self.decode == NO_TIME:
            yield f"loader.decode_threads={self.decode_threads}: nothing is decoded without loader.decode"
        if self.queue == "in_rank" and self.num_workers == 0:
            yield "loader.queue=in_rank: there is no queue with loader.num_workers=0"
        if self.worker == "thread" and self.max_workers < 2:
            yield f"loader.worker=thread: changes nothing with loader.num_workers={self.num_workers}"
        if not self.pin_memory and self.pin_bandwidth != PIN_BANDWIDTH:
            rate = RATE.exact(self.pin_bandwidth)
            yield f"loader.pin_bandwidth={rate}: nothing is copied with loader.pin_memory=false"
        for options in self.unused_options:
            for key, value in options:
                if value is not None:
                    yield f"loader.{key}={value}: nothing asks for it with loader.shuffle={self.shuffle}"
