"""The plan: the roles of a run, their nodes and their parameters.

A plan has parameters, never lists: it pickles to a few kilobytes at any size, and any actor can be restarted with the
plan and its own name. It does not depend on scenarios: ``planning.py`` makes it from one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from rayio import storage
from rayio.data.access.contract import ACCESSES
from rayio.data.formats import FORMATS, Format
from rayio.data.layout import Layout
from rayio.data.sampler import Sampler
from rayio.model.ledger import WORD, Tally
from rayio.model.loading import Loading
from rayio.model.phases import Phased, PhasedStorage
from rayio.model.plan_parts import EvaluationPhase, LoaderSpec, Phase
from rayio.model.queue import QueueSpec
from rayio.model.saving import Checkpointing
from rayio.model.training import Training
from rayio.place import BEGINNING, Start
from rayio.scenario.cluster import Cluster
from rayio.scenario.costs import Costs
from rayio.scenario.decode import Work
from rayio.scenario.storage import StorageParameters
from rayio.scenario.trace import Trace
from rayio.scenario.train import Stragglers
from rayio.schema.distribution import NO_TIME
from rayio.seeds import Draws
from rayio.storage.address import join
from rayio.storage.base import Storage
from rayio.storage.layers.layer import Layer
from rayio.storage.model import DeviceSpec
from rayio.storage.stores.opening import Settings, Store

#: Default share of a node's memory for batches (Ray's object store, or free memory) that prefetch windows may use.
IN_FLIGHT_SHARE = 0.3


@dataclass(frozen=True)
class Plan:
    """A run's parameters, from which all roles are built; ``rayio.model.planning.plan_of`` makes it."""

    seed: int
    #: Whether storage is a model (always on the virtual engine).
    modelled: bool
    cluster: Cluster
    loader: LoaderSpec
    #: The dataset's format, by name.
    format: str
    training_phase: Phase
    #: Expected bytes of the samples of its dataset.
    dataset_bytes: float
    #: Steps that every rank has in an epoch, and the number of ranks that have one more.
    steps_of_all: int
    larger_shares: int
    #: Whether ranks meet after each step, and the seconds of the all-reduce.
    has_barrier: bool
    sync_seconds: float
    stragglers: Stragglers | None
    #: The evaluations of the run; None when there are none.
    evaluation: EvaluationPhase | None
    #: The checkpoints of the run; None when there are none.
    checkpointing: Checkpointing | None
    #: The modelled storage system, and the distribution of its first-byte latencies.
    storage: StorageParameters
    first_byte: Draws
    #: Settings of real storage.
    stores: Settings
    trace: Trace
    #: The loader overhead model, which the virtual clock charges.
    costs: Costs
    #: Further seconds for which a taken batch keeps its rank on the wall clock, to emulate another loader.
    held_seconds: float = 0.0
    #: Bytes per node of ``loader.max_bytes_in_flight: auto`` on this engine; None is no bound.
    auto_bytes_in_flight: int | None = None
    #: The layers between workers and storage, the innermost first.
    layers: tuple[Layer, ...] = ()
    #: Where the run begins. Steps before it are not taken, nor are the checkpoints and evaluations that follow them.
    start: Start = BEGINNING

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.cluster.world_size

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Steps in each epoch of every rank, or without ``drop_last`` of those that have the most."""
        return (self._sampler.num_steps,) * self.training_phase.epochs

    def steps_of(self, rank: int) -> tuple[int, ...]:
        """Return the steps of one rank in each epoch."""
        return tuple(self._sampler.steps(epoch, rank) for epoch in range(self.training_phase.epochs))

    @property
    def payload(self) -> bool:
        """Return True if batches contain their bytes."""
        return self.loader.payload

    @property
    def is_queued_in_rank(self) -> bool:
        """Return True if prefetch queues live in the processes of their ranks."""
        return self.loader.queue == "in_rank" and self.loader.num_workers > 0

    @property
    def max_bytes_in_flight(self) -> int | None:
        """Bound on the bytes of leased and ready batches on one node; None is no bound."""
        chosen = self.loader.max_bytes_in_flight
        return self.auto_bytes_in_flight if chosen == "auto" else chosen

    def __getstate__(self) -> dict[str, Any]:
        """Return the parameters without cached values."""
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    # --- where roles live -------------------------------------------------------------------------------------------

    def node_of_rank(self, rank: int) -> int:
        """Return the node of a rank and its queue."""
        return rank // self.cluster.ranks_per_node

    def node_of_reader(self, rank: int, worker: int) -> int:
        """Return the node of a worker: its rank's, or the next in turn of all nodes or of the nodes for workers.

        Workers that share a process have one node. Nodes with more cores have more turns. A worker of a pool gets the
        number of the pool's first node.
        """
        if self.is_pooled(worker):
            return self.cluster.all_nodes
        if self.cluster.placement == "colocated":
            return self.node_of_rank(rank)
        turn = rank if self.loader.worker == "thread" else rank * self.loader.num_workers + worker
        return self._turns[turn % len(self._turns)]

    def is_pooled(self, worker: int) -> bool:
        """Return True if a rank's worker of this number lives on a node of the pool."""
        scaling = self.loader.scaling
        return self.cluster.has_pool and scaling is not None and worker >= scaling.min

    @cached_property
    def _turns(self) -> Sequence[int]:
        return self.cluster.turns()

    def node_of_writer(self, writer: int) -> int:
        """Return the node of a checkpoint writer: its rank's, or for dedicated writers the next in turn."""
        if self.checkpointing is None:
            raise ValueError("there are no checkpoints, so no writer has a node")
        return self.checkpointing.writers.node(writer, self.checkpointing.topology)

    def readers(self) -> Iterator[tuple[int, int]]:
        """Return the (rank, worker) of every worker."""
        for rank in range(self.world_size):
            for worker in range(self.loader.num_workers):
                yield rank, worker

    @property
    def num_writers(self) -> int:
        """Number of checkpoint writers."""
        return 0 if self.checkpointing is None else len(self.checkpointing.sizes)

    def writers_of(self, ranks: Iterable[int]) -> Iterable[int]:
        """Return the numbers of the checkpoint writers of some ranks."""
        if (saved := self.checkpointing) is None:
            return ()
        return sorted({writer for rank in ranks for writer in saved.writers.of_rank(rank, saved.topology)})

    def parties(self, epoch: int, step: int) -> int:
        """Return the number of ranks that meet at a step: those that have not run out of steps."""
        if epoch >= self.training_phase.epochs:
            return 0
        if step < self.steps_of_all:
            return self.world_size
        return self.larger_shares if step < self._sampler.num_steps else 0

    def meets(self, rank: int, epoch: int, step: int) -> bool:
        """Return True if a rank meets others at this step."""
        return step < self._sampler.steps(epoch, rank)

    # --- what roles are built from ----------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """The dataset's files and sizes."""
        return self._sampler.layout

    @property
    def _sampler(self) -> Sampler:
        return self.training_phase.sampler

    @property
    def form(self) -> Format:
        """The dataset's format."""
        return FORMATS[self.format]

    def sampler(self, num_ranks: int = 1) -> Sampler:
        """Return the function from (epoch, rank, step) to training samples, with a cache for so many ranks."""
        return self._sampler.cached_for(num_ranks)

    def samplers(self, num_ranks: int = 1) -> Phased[Sampler]:
        """Return the functions from (epoch, rank, step) to samples, of training and of evaluation."""
        training = self.sampler(num_ranks)
        held_out = training if self.evaluation is None else self.evaluation.sampler.cached_for(num_ranks)
        return Phased(training, held_out, len(self.steps))

    def is_evaluation(self, epoch: int) -> bool:
        """Return True if an epoch is an evaluation."""
        return epoch >= len(self.steps)

    def evaluation_steps_of(self, rank: int) -> tuple[int, ...]:
        """Return the steps of one rank in each evaluation, by epoch number: the epochs of training have 0."""
        if self.evaluation is None:
            return ()
        return (0,) * len(self.steps) + (self.evaluation.sampler.steps(0, rank),) * self.evaluation.epochs

    def data_storage(self, make: Callable[[str], Storage]) -> Storage:
        """Return a worker's storage: the folders of the dataset and of its evaluation, which ``make`` opens."""
        training = make(self.training_phase.path)
        if self.evaluation is None or self.modelled:
            return training
        return PhasedStorage(training, make(self.evaluation.path), len(self.steps))

    def loading(self, num_ranks: int = 1) -> Loading:
        """Return the batches of ``num_ranks`` ranks, for workers and queues."""
        decode = self.loader.decode
        work = decode if isinstance(decode, Work) else None
        if work is not None and not self.modelled:
            work.prepare()
        return Loading(
            self.samplers(num_ranks),
            self.form,
            ACCESSES[self.loader.file_access],
            self.loader.file_access_options,
            seed=self.seed,
            decode=NO_TIME if isinstance(decode, Work) else decode,
            payload=self.payload,
            modelled=self.modelled,
            itemised=self.trace.is_itemised or any(layer.needs_places for layer in self.layers),
            cached=self.is_divided,
            named=any(layer.needs_files for layer in self.layers),
            rate=work.rate if work is not None and self.modelled else None,
            decoding=None if self.modelled else work,
        )

    def queue(self, rank: int, *, evaluating: bool = False) -> QueueSpec:
        """Return the parameters of a rank's queue; if evaluations have a second one, each gets half of the bytes."""
        loader, bound = self.loader, self.max_bytes_in_flight
        shared_by = self.cluster.ranks_per_node
        if self.evaluation is not None and self.evaluation.is_amid_epochs:
            shared_by *= 2
        return QueueSpec(
            rank=rank,
            num_workers=loader.num_workers,
            scaling=loader.scaling,
            has_pool=self.cluster.has_pool,
            prefetch_factor=loader.prefetch_factor,
            steps=self.evaluation_steps_of(rank) if evaluating else self.steps_of(rank),
            assignment=loader.assignment,
            in_order=loader.in_order,
            max_bytes=None if bound is None else bound // shared_by,
        )

    def training(self, rank: int) -> Training:
        """Return the parameters of a rank."""
        phase, held_out, evaluating = self.training_phase, self.evaluation, None
        if held_out is not None:
            evaluating = Training(rank, self.evaluation_steps_of(rank), held_out.compute, seed=held_out.seed)
        return Training(
            rank,
            self.steps_of(rank),
            phase.compute,
            seed=phase.seed,
            sync_seconds=self.sync_seconds,
            checkpointing=self.checkpointing,
            evaluation=evaluating,
            evaluating=None if held_out is None else held_out.schedule,
            factor=1.0 if self.stragglers is None else self.stragglers.factor_of(rank),
        )

    # --- real storage -----------------------------------------------------------------------------------------------

    def store(self, root: str | Path, path: str) -> Store:
        """Return the store at a path or address of the scenario; relative ones start from ``root``."""
        return storage.open(join(str(root), path), self.stores)

    # --- modelled storage -------------------------------------------------------------------------------------------

    @cached_property
    def device(self) -> DeviceSpec:
        """The limits of the modelled storage system."""
        chosen = self.storage
        return DeviceSpec(
            chosen.connection_bandwidth, chosen.bandwidth, chosen.requests_per_second, chosen.opens_per_second,
            chosen.open if chosen.open.expected > 0 else None,
        )  # fmt: skip

    def device_of_node(self, node: int) -> int:
        """Return the number of a node's device: its own, or 0 for the one that the cluster shares."""
        return self.state_of_node(node) if self.storage.scope == "node" else 0

    @property
    def is_divided(self) -> bool:
        """Return True if a layer needs the samples of a batch one by one."""
        return any(layer.needs_samples for layer in self.layers)

    def state_of_node(self, node: int) -> int:
        """Return the number of a node's own state; nodes of a pool beyond those that workers fill share states."""
        beyond = node - self.cluster.all_nodes
        return node if beyond < 0 else node - beyond + beyond % self.num_pooled

    def shared_by(self, layer: Layer) -> Sequence[int]:
        """Return the numbers of a layer's shared states: one for each reading node (the pool's last), or one in all."""
        if layer.sharing != "node":
            return (0,) if layer.sharing else ()
        first = self.cluster.all_nodes
        return (*self.cluster.reading_nodes, *range(first, first + self.num_pooled))

    @cached_property
    def num_pooled(self) -> int:
        """Nodes of the pool that workers can fill; further ones share a device."""
        pool, loader = self.cluster.reader_pool, self.loader
        least = loader.num_workers if loader.scaling is None else loader.scaling.min
        return 0 if pool is None else pool.filled_by((loader.num_workers - least) * self.world_size)

    @property
    def num_devices(self) -> int:
        """Number of modelled devices."""
        return self.device_of_node(self.cluster.all_nodes + self.num_pooled - 1) + 1

    # --- the ledger -------------------------------------------------------------------------------------------------

    def tallies(self) -> list[Tally]:
        """Return an empty tally of this attempt for each rank."""
        return [Tally(rank, attempt=self.start.attempt) for rank in range(self.world_size)]

    def planned_numbers(self) -> list[Tally]:
        """Return the planned steps and samples of every rank, with evaluations, without digests."""
        tallies = self.tallies()
        for tally in tallies:
            for sampler, epochs, first in self._planned_epochs(tally.rank):
                steps, samples = sampler.left(0, tally.rank, first)  # every epoch has as many
                tally.steps += len(epochs) * steps
                tally.samples += len(epochs) * samples
        return tallies

    def _planned_epochs(self, rank: int) -> Iterator[tuple[Sampler, range, int]]:
        """Return a rank's epochs from the start on, with evaluations, and the first step of each."""
        start, epochs = self.start, len(self.steps)
        if start.step:
            yield self._sampler, range(start.epoch, min(start.epoch + 1, epochs)), start.step
        yield self._sampler, range(start.epoch + (start.step > 0), epochs), 0
        if self.evaluation is not None:
            schedule, steps = self.evaluation.schedule, self._sampler.steps(start.epoch, rank)
            past = schedule.number_before(start.epoch, start.step, steps)
            yield self.evaluation.sampler, range(epochs + past, epochs + self.evaluation.epochs), 0

    def planned(self) -> list[Tally]:
        """Return the planned tally of every rank, with the digest of its sample ids."""
        tallies = self.tallies()
        for tally in tallies:
            for sampler, epochs, first in self._planned_epochs(tally.rank):
                for epoch in epochs:
                    steps, samples, digest = sampler.planned(epoch, tally.rank, first)
                    tally.steps += steps
                    tally.samples += samples
                    tally.digest = (tally.digest + digest) & WORD
        return tallies
