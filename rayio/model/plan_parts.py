"""What a plan is made of, beside what sections of the scenario already are: what is read, and how batches are made."""

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
    """Training, or all evaluations together: what is read, how often, and how long its steps compute."""

    #: Folder of the dataset.
    path: str
    #: Which rank reads what of it.
    sampler: Sampler
    #: Times that it is read, at most ``train.steps`` steps of it.
    epochs: int
    #: What its compute times are drawn from, below this seed.
    compute: Draws
    seed: int


@dataclass(frozen=True)
class EvaluationPhase(Phase):
    """All evaluations together, each an epoch; when they are due, in steps of training."""

    schedule: Schedule
    #: Whether one may come amid an epoch of training, when both queues of a rank hold batches.
    is_amid_epochs: bool


@dataclass(frozen=True)
class LoaderSpec:
    """How each rank's batches are made: PyTorch's words, PyTorch's meaning."""

    kind: str
    #: What the kind has been told beside its name.
    options: Section
    #: Readers of a rank: as many as there are, or can be.
    num_workers: int
    #: What decides how many there are; None where it is always as many.
    scaling: Autoscaled | None
    prefetch_factor: int
    worker: Literal["process", "thread"]
    io_depth: int
    assignment: Literal["static", "dynamic"]
    in_order: bool
    #: How files are walked, by name, and the options of that.
    file_access: str
    file_access_options: Section
    #: Whether the prefetch queue of each rank is an actor, or lives in its rank's process.
    queue: Literal["actor", "in_rank"]
    #: Times that decoding a sample takes, or what is really done to it.
    decode: Draws | Work
    #: Whether batches carry their bytes.
    payload: bool
    #: Bound on the bytes that the queues of one node may have leased or ready; auto is the engine's to say.
    max_bytes_in_flight: int | Literal["auto"]
    #: Expected bytes that the full windows of all ranks of one node hold.
    node_window_bytes: float
