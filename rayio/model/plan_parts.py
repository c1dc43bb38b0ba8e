"""Parts of a plan: the phases that read datasets, and the loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rayio.data.sampler import Sampler
from rayio.model.schedule import Schedule
from rayio.scenario.decode import Work
from rayio.scenario.workers import Autoscaled
from rayio.schema.fields import Section
from rayio.seeds import Draws


@dataclass(frozen=True)
class Phase:
    """Training, or all evaluations together: the dataset, its epochs, and the compute times."""

    #: Folder of the dataset.
    path: str
    #: The samples of each rank and step.
    sampler: Sampler
    #: Number of epochs, each of at most ``train.steps`` steps.
    epochs: int
    #: The distribution of compute times, and its seed.
    compute: Draws
    seed: int


@dataclass(frozen=True)
class EvaluationPhase(Phase):
    """All evaluations together, each an epoch, with the training steps after which they are due."""

    schedule: Schedule
    #: Whether one may be due within an epoch of training, when both queues of a rank hold batches.
    is_amid_epochs: bool


@dataclass(frozen=True)
class LoaderSpec:
    """The loader of each rank, in PyTorch's terms."""

    kind: str
    #: The options of the kind.
    options: Section
    #: Workers of a rank; with ``scaling``, the most.
    num_workers: int
    #: The bounds of autoscaling; None if the number of workers is fixed.
    scaling: Autoscaled | None
    prefetch_factor: int
    worker: Literal["process", "thread"]
    io_depth: int
    assignment: Literal["static", "dynamic"]
    in_order: bool
    #: The kind of file access by name, and its options.
    file_access: str
    file_access_options: Section
    #: Whether the prefetch queue of each rank is an actor, or lives in its rank's process.
    queue: Literal["actor", "in_rank"]
    #: The distribution of a sample's decoding time, or decoding that is carried out.
    decode: Draws | Work
    #: Whether batches contain their bytes.
    payload: bool
    #: Bound on the bytes of leased and ready batches on one node; the engine resolves auto.
    max_bytes_in_flight: int | Literal["auto"]
    #: Expected bytes of the full prefetch windows of all ranks of one node.
    node_window_bytes: float
