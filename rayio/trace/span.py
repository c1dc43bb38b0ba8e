"""The schema of spans: their names and columns.

Only this module names spans and columns. On lane 0 the spans of a role do not overlap and tile its life, so the rest is
a measured number; spans that run in parallel are on other lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

#: Version of the columns; stored in every span file.
SCHEMA_VERSION = 2

#: Roles. A reader is named by its rank and its number there ("3-1"), the queue of a rank's evaluations "3-eval", others
#: by one number ("3"). ``pool`` is a node that comes and goes. ``stage`` is a process of ``stages``, named by its
#: stage and its number there ("simulate-3").
ROLES = (
    "reader", "queue", "rank", "checkpoint_writer", "barrier", "storage", "network", "pool", "cache", "layer", "stage",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpanName:
    """A span name: its lane by role, and the meaning of its duration."""

    lanes: dict[str, int]
    meaning: str


#: Names of requests to storage, by their code.
REQUESTS = ("io.open", "io.read", "io.write", "io.fsync")

#: Concurrent requests are on separate lanes, from this one on.
REQUEST_LANE = 2

#: Roles that issue requests.
_REQUESTING = dict.fromkeys(("reader", "rank", "checkpoint_writer", "stage"), REQUEST_LANE)

#: Failed requests that were repeated are on separate lanes, from this one on.
RETRY_LANE = 1 << 9
_RETRYING = dict.fromkeys(("reader", "rank", "checkpoint_writer", "stage"), RETRY_LANE)

#: Delays by layers of storage are on this lane.
DELAY_LANE = 3 << 8
_DELAYED = dict.fromkeys(("reader", "rank", "checkpoint_writer", "stage"), DELAY_LANE)

#: Spans of other libraries (see ``rayio.trace.otel``) are on this lane and above, one lane per thread; their names are
#: free, and results ignore them.
FOREIGN_LANE = 1 << 10

#: Every name that rayio records. A rank with ``num_workers: 0`` reads during its ``data_wait``, hence on lane 1.
SPANS: dict[str, SpanName] = {
    "startup": SpanName(
        {"rank": 0}, "from the start of a rank until it restores a checkpoint, or asks for its first batch"
    ),
    "restore": SpanName({"rank": 0}, "reading back the checkpoint that the run begins with"),
    "broadcast": SpanName({"rank": 1}, "within a restore: rank 0 sends the state to all, on the links of train.sync"),
    "gap": SpanName({"rank": 0}, "the pause between writing and reading checkpoints (checkpoint.phases.gap)"),
    "data_wait": SpanName({"rank": 0}, "exposed data loading time: asked for a batch, not yet there"),
    "device_copy": SpanName({"rank": 0}, "a batch on its way to the accelerator, as far as no compute hides it"),
    "copy_ahead": SpanName({"rank": 3}, "with train.device_copy.overlap: the next batch copied during compute, whole"),
    "bubble": SpanName({"rank": 0}, "pipeline stages wait for microbatches (train.parallelism)"),
    "compute": SpanName({"rank": 0}, "the requested compute time"),
    "sync": SpanName({"rank": 0}, "from the rank's own deadline to the latest rank's, and the modelled all-reduce"),
    "drain_wait": SpanName(
        {"rank": 0},
        "until a drain has made room for a checkpoint in the burst tier, or at the end until all is drained",
    ),
    "checkpoint": SpanName({"rank": 0}, "the part of a checkpoint that blocks the rank"),
    "snapshot": SpanName({"rank": 1}, "within an asynchronous checkpoint: the copying of the state"),
    "checkpoint_wait": SpanName({"rank": 1}, "within a checkpoint: until the asynchronous one before it is durable"),
    "evaluate": SpanName({"rank": 0}, "training pauses for an evaluation, from its first batch asked for to its end"),
    "eval_data_wait": SpanName({"rank": 1}, "exposed data loading time within an evaluation"),
    "eval_compute": SpanName({"rank": 1}, "within an evaluation: the requested compute time"),
    "read": SpanName({"reader": 0, "rank": 1}, "the requests of one batch, from the first to the last answer"),
    "decode": SpanName(
        {"reader": 0, "rank": 1}, "preprocessing of one batch; with the bytes that real decoding went through"
    ),
    "overshoot": SpanName({"reader": 0, "rank": 0, "stage": 0}, "a sleep woke this much late; never counted as work"),
    "put": SpanName(
        {"reader": 0},
        "transfer, worker → queue: one batch into the object store, where an engine knows it (the virtual one)",
    ),
    "transfer": SpanName(
        {"reader": 1, "rank": 2},
        "one batch on its way between nodes: sent by its reader where the network is a model, fetched by its rank else",
    ),
    "pin": SpanName(
        {"queue": 4, "rank": 1},
        "with loader.pin_memory: from when a batch was at its queue until it was copied into page-locked memory, after "
        "those before it",
    ),
    "lease": SpanName({"queue": 1}, "from the grant of one batch to a worker until it was ready at its queue"),
    "scale": SpanName(
        {"queue": 2},
        "a rank's readers became more or fewer: from when that was wanted until it was so; `attributes` is a JSON "
        "object of `from`, `to` and `why`; with cluster.reader_pool also of `nodes`, the seconds of it that nodes took "
        "to come, and of `wanted` where that is more than came",
    ),
    "first_batch": SpanName(
        {"queue": 3},
        "with cluster.reader_pool: from when a reader that came was there until it had read its first batch",
    ),
    "node_start": SpanName({"pool": 0}, "a node of cluster.reader_pool: from when it was asked for until it was there"),
    "node_up": SpanName({"pool": 0}, "a node of cluster.reader_pool: from when it was there until it had gone"),
    "memory_bound": SpanName({"queue": 0}, "the bound on bytes in flight kept the window closed"),
    "write": SpanName({"checkpoint_writer": 0}, "the write requests of one checkpoint file"),
    "fsync": SpanName({"checkpoint_writer": 0}, "waiting until a checkpoint file is durable"),
    "drain": SpanName({"checkpoint_writer": 1}, "one checkpoint file copied from the burst tier to checkpoint.path"),
    "manifest": SpanName(
        {"checkpoint_writer": 1}, "the writing of a checkpoint's manifest, once its files are durable"
    ),
    "load": SpanName({"checkpoint_writer": 0}, "the read requests of one checkpoint file, when a run begins with it"),
    "serialise": SpanName(
        {"checkpoint_writer": 0}, "what checkpoint.engine takes in addition to the requests of writing"
    ),
    "deserialise": SpanName(
        {"checkpoint_writer": 0}, "what checkpoint.engine takes in addition to the requests of reading"
    ),
    "verify": SpanName(
        {"checkpoint_writer": 0, "stage": 0}, "comparing the bytes of a file with what was written there"
    ),
    "stage_read": SpanName({"stage": 0}, "the read requests of one file, by a process of a stage"),
    "stage_compute": SpanName({"stage": 0}, "a process of a stage computes, before a file that it writes"),
    "stage_write": SpanName({"stage": 0}, "the write requests of one file, by a process of a stage"),
    "stage_open": SpanName({"stage": 0}, "opens of files without a read or a write, by a process of a stage"),
    "lost": SpanName(
        dict.fromkeys(
            ("reader", "queue", "checkpoint_writer", "barrier", "storage", "network", "cache", "layer", "stage"), 1
        ),
        "from when a killed actor was last heard until it was started again: what it recorded in between is gone",
    ),
    "sample": SpanName({"reader": 1, "rank": 1}, "level sample: one sample was read (see Env.read)"),
    "io.open": SpanName(_REQUESTING, "level io: a file was opened"),
    "io.read": SpanName(_REQUESTING, "level io: one read request, as the operating system got it"),
    "io.write": SpanName(_REQUESTING, "level io: one write request"),
    "io.fsync": SpanName(_REQUESTING, "level io: one fsync of a file or of its folder"),
    "retry": SpanName(
        _RETRYING,
        "a request to storage failed: from its begin to that of the next attempt; `attributes` is a JSON object of "
        "`why`, what was answered",
    ),
    "delay": SpanName(
        _DELAYED,
        "within a read or a write: a layer of storage held it up; `attributes` is a JSON object of `cause`, which it "
        "is charged to, and `why`",
    ),
    "life": SpanName(
        {"rank": 1, "reader": 1, "queue": 1, "checkpoint_writer": 1, "barrier": 1, "storage": 1, "stage": 1},
        "a role's whole life, one span per attempt",
    ),
}

#: The outcome of the spanned work.
STATUSES = ("ok", "error", "lost")

#: The columns of a span file, in order, with their Arrow types; "text" is a dictionary-encoded string. Times are in ns
#: (of the Unix epoch, or of the virtual clock); ``bytes`` and ``requests`` count requests to storage. No value is -1
#: for
#: rank, epoch, step, batch and offset, 0 for parent and link, "" for texts.
#:
#: Since version 2: ``pid`` is the operating system's process (0 on the virtual clock), ``thread`` the native thread (0:
#: the role's main one), ``file`` is relative to the root of its storage, ``offset`` is in bytes. ``attributes`` is JSON
#: for ``scale``, ``retry`` and ``delay``, "" for rayio's other spans. For spans of other libraries it is an object with
#: the keys ``trace`` and ``span`` (ids in hex), ``kind``, ``scope``, and optionally ``parent``, ``attributes``,
#: ``events``, ``links`` and ``status`` (see ``rayio.trace.otel.foreign``).
COLUMNS: dict[str, str] = {
    "name": "text",
    "role": "text",
    "index": "text",
    "node": "int32",
    "lane": "int16",
    "rank": "int32",
    "epoch": "int32",
    "step": "int32",
    "attempt": "int32",
    "batch": "int64",
    "start_ns": "int64",
    "duration_ns": "int64",
    "bytes": "int64",
    "requests": "int32",
    "parent": "int64",
    "link": "int64",
    "status": "text",
    "pid": "int32",
    "thread": "int32",
    "file": "text",
    "offset": "int64",
    "attributes": "text",
}

#: The least value of each column of numbers; ids may have any.
LEAST: dict[str, int] = {
    **{name: 0 for name, kind in COLUMNS.items() if kind != "text" and name not in ("parent", "link")},
    **dict.fromkeys(("rank", "epoch", "step", "batch", "offset"), -1),
}

#: Values of the columns that a version added, for files of older versions.
ADDED: dict[int, dict[str, int | str]] = {2: {"pid": 0, "thread": 0, "file": "", "offset": -1, "attributes": ""}}


@cache
def schema() -> pa.Schema:
    """Return :data:`COLUMNS` as an Arrow schema with its version."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [(name, text if kind == "text" else pa.type_for_alias(kind)) for name, kind in COLUMNS.items()],
        metadata={"rayio.span_schema": str(SCHEMA_VERSION)},
    )
