"""Facts that a publication may report of a workload: their units, and how each follows from a simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from rayio.units import BYTES, RATE, SECONDS, Dimension

if TYPE_CHECKING:
    from rayio.records.workflow import Workflow

SHARE = Dimension("shares", '"7 %"', {"%": Decimal("0.01")}, ("%",), 1e9)
RATIO = Dimension("ratios", '"1.5 ×"', {"×": Decimal(1)}, ("×",), 1e9)
#: A number of things, written without a unit.
COUNT = Dimension("counts", "473", {"": Decimal(1)}, ("",), 1e18)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Requests:
    """Single read requests: of the whole run if it has few, else of its first steps."""

    sizes: Array
    #: Share of the requests that begin where the one before in their file ended.
    consecutive: float


@dataclass(frozen=True)
class Observed:
    """The numbers of a simulated scenario from which facts follow; times in seconds, of all ranks together."""

    seconds: float
    ranks: int
    read_seconds: float
    write_seconds: float
    read_bytes: int
    written_bytes: int
    delivered_bytes: int
    delivered_samples: int
    #: Median step and accelerator utilisation; None if the run was too short for them.
    step_seconds: float | None
    au: float | None
    #: Numbers of the scenario: files and steps of an epoch without the cap ``train.steps``.
    files: int
    file_bytes: float
    steps_per_epoch: int
    demand: float
    #: Written files, and the checkpoints that they are of.
    written_files: int = 0
    checkpoints: int = 0
    #: What the processes of ``stages`` did, and when; None without stages.
    workflow: Workflow | None = None
    requests: Requests = field(default_factory=lambda: Requests(np.zeros(0), 0.0))


def _divided(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


@dataclass(frozen=True)
class Measure:
    """A fact by its name: its dimension, what it is, and how it follows from a simulation and from ``size``."""

    dimension: Dimension
    about: str
    of: Callable[[Observed, float], float | None]
    #: Whether it needs single requests, so that steps are simulated again with ``trace.level: io``.
    is_of_requests: bool = False
    #: Whether it needs ``size``.
    is_sized: bool = False


def _of_stages(name: str) -> Callable[[Observed, float], float | None]:
    """Return a function from a simulation to the sum of a number over its stages."""
    return lambda o, _: None if o.workflow is None else sum(getattr(stage, name) for stage in o.workflow.stages)


def _near(sizes: Array, nbytes: float) -> float | None:
    return float(np.mean(sizes == round(nbytes))) if len(sizes) else None


#: All facts by name.
FACTS: dict[str, Measure] = {
    "io_share": Measure(
        SHARE, "time in reads and writes of a rank, also where prefetching hides it, of the run's time",
        lambda o, _: _divided(o.read_seconds + o.write_seconds, o.ranks * o.seconds),
    ),
    "au": Measure(SHARE, "accelerator utilisation, mean over ranks", lambda o, _: o.au),
    "step_time": Measure(SECONDS, "a step with its I/O, median", lambda o, _: o.step_seconds),
    "epoch_time": Measure(
        SECONDS, "the steps of an epoch, without the cap train.steps",
        lambda o, _: None if o.step_seconds is None else o.step_seconds * o.steps_per_epoch,
    ),
    "steps_per_epoch": Measure(COUNT, "steps of an epoch, without the cap", lambda o, _: o.steps_per_epoch),
    "samples_per_second": Measure(
        COUNT, "samples delivered per second, all ranks", lambda o, _: _divided(o.delivered_samples, o.seconds)
    ),
    "read_demand": Measure(RATE, "bytes per second that a rank needs to be always busy", lambda o, _: o.demand),
    "read_time": Measure(SECONDS, "time in reads of a rank", lambda o, _: o.read_seconds / o.ranks),
    "read_bytes": Measure(BYTES, "bytes read, all ranks", lambda o, _: o.read_bytes),
    "rank_read_bytes": Measure(BYTES, "bytes read by a rank", lambda o, _: o.read_bytes / o.ranks),
    "read_amplification": Measure(
        RATIO, "bytes read for each byte that was used", lambda o, _: _divided(o.read_bytes, o.delivered_bytes)
    ),
    "request_rate": Measure(
        RATE, "bytes of reads by the time that they take, opens included",
        lambda o, _: _divided(o.read_bytes, o.read_seconds),
    ),
    "request_bytes": Measure(
        BYTES, "size of a read request, median",
        lambda o, _: float(np.median(o.requests.sizes)) if len(o.requests.sizes) else None, is_of_requests=True,
    ),
    "requests_of": Measure(
        SHARE, "read requests of exactly this size", lambda o, size: _near(o.requests.sizes, size),
        is_of_requests=True, is_sized=True,
    ),
    "consecutive": Measure(
        SHARE, "read requests that begin where the one before in their file ended",
        lambda o, _: o.requests.consecutive, is_of_requests=True,
    ),
    "written_bytes": Measure(BYTES, "bytes written, all ranks", lambda o, _: o.written_bytes),
    "checkpoint_bytes": Measure(
        BYTES, "bytes written of a checkpoint, all ranks", lambda o, _: _divided(o.written_bytes, o.checkpoints)
    ),
    "checkpoint_files": Measure(
        COUNT, "files written of a checkpoint, all ranks", lambda o, _: _divided(o.written_files, o.checkpoints)
    ),
    "write_time": Measure(SECONDS, "time in writes, all writers", lambda o, _: o.write_seconds),
    "processes": Measure(COUNT, "processes of all stages", _of_stages("processes")),
    "stage_reads": Measure(COUNT, "read requests of all stages", _of_stages("reads")),
    "stage_writes": Measure(COUNT, "write requests of all stages", _of_stages("writes")),
    "stage_read_bytes": Measure(BYTES, "bytes read by all stages", _of_stages("read_bytes")),
    "stage_written_bytes": Measure(BYTES, "bytes written by all stages", _of_stages("written_bytes")),
    "stage_files": Measure(
        COUNT, "files that stages read or write",
        lambda o, _: None
        if o.workflow is None
        else sum(stage.files_read + stage.files_written for stage in o.workflow.stages),
    ),
    "workflow_time": Measure(
        SECONDS, "from the first start of a process or rank to the last end",
        lambda o, _: None if o.workflow is None else o.workflow.seconds,
    ),
    "workflow_io_time": Measure(
        SECONDS, "time in which at least one process, worker or writer reads or writes",
        lambda o, _: None if o.workflow is None else o.workflow.io_seconds,
    ),
    "files": Measure(COUNT, "files of the dataset", lambda o, _: o.files),
    "file_bytes": Measure(BYTES, "size of a file, mean", lambda o, _: o.file_bytes),
    "dataset_bytes": Measure(BYTES, "size of all files", lambda o, _: o.files * o.file_bytes),
}  # fmt: skip
