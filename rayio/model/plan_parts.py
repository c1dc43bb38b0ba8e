"""Parts of a plan beyond sections of the scenario: what is read, and how batches are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from rayio.data.sampler import Sampler
from rayio.model.training import ComputeTimes
from rayio.scenario.decode import Work
from rayio.scenario.pace import USUAL, Pace
from rayio.scenario.schedule import Schedule
from rayio.scenario.workers import Autoscaled
from rayio.schema.fields import Section
from rayio.seeds import Draws


@dataclass(frozen=True)
class Phase:
    """Training, or all evaluations: what is read, how often, and the compute time of its steps."""

    path: str
    #: The samples of each rank and step.
    sampler: Sampler
    #: Number of passes, each of at most ``train.steps`` steps.
    epochs: int
    #: Distribution of compute times, and its seed.
    compute: Draws
    seed: int
    #: What changes them from step to step and from rank to rank.
    pace: Pace = USUAL

    def of_node(self, node: int) -> ComputeTimes:
        """Return the compute times of a node's ranks."""
        return ComputeTimes(self.compute, self.seed, self.pace, node)


@dataclass(frozen=True, kw_only=True)
class EvaluationPhase(Phase):
    """All evaluations, each an epoch, and the training steps after which they are due."""

    schedule: Schedule
    #: True if one may come within an epoch of training, when both queues of a rank hold batches.
    is_amid_epochs: bool


class Doom(NamedTuple):
    """A rank that dies in this attempt before its step ``step`` of an epoch; ``event`` is that of the scenario."""

    rank: int
    epoch: int
    step: int
    event: int


@dataclass(frozen=True)
class LoaderSpec:
    """The making of each rank's batches, in PyTorch's terms."""

    kind: str
    options: Section
    #: Readers of a rank, or the largest number of them.
    num_workers: int
    #: Parameters of scaling; None for a constant number of readers.
    scaling: Autoscaled | None
    prefetch_factor: int
    worker: Literal["process", "thread"]
    io_depth: int
    assignment: Literal["static", "dynamic", "by_file"]
    in_order: bool
    #: Name of the file access, and its options.
    file_access: str
    file_access_options: Section
    #: An actor for each rank's prefetch queue, or its rank's process.
    queue: Literal["actor", "in_rank"]
    #: Bytes per second of copies into page-locked memory; None without.
    pin_bandwidth: float | None
    #: Decode times of samples, or real work.
    decode: Draws | Work
    #: Threads of a reader that decode a batch.
    decode_threads: int
    payload: bool
    #: Bound on the bytes that the queues of one node may have leased or ready; the engine sets auto.
    max_bytes_in_flight: int | Literal["auto"]
    #: Expected bytes of the full windows of all ranks of the node with the most.
    node_window_bytes: float

    @property
    def working_threads(self) -> int:
        """Threads of a reader that decode for real."""
        return self.decode_threads if isinstance(self.decode, Work) else 1
