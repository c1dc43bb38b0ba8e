"""The plan: the roles of a run, their nodes and their parameters. ``planning.py`` makes it from a scenario.

It has no lists: it pickles to a few kilobytes for any dataset and number of ranks, and any actor can be restarted from
the plan and its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from rayio import storage
from rayio.data.access.contract import ACCESSES, Files
from rayio.data.access.memory import too_much
from rayio.data.formats import Format, form_of
from rayio.data.layout import Layout
from rayio.data.planned import planned_of
from rayio.data.sampler import Sampler
from rayio.errors import ScenarioError
from rayio.model.ledger import Tally
from rayio.model.loading import Loading
from rayio.model.phases import Phased, PhasedStorage
from rayio.model.plan_parts import Doom, EvaluationPhase, LoaderSpec, Phase
from rayio.model.queue import QueueSpec
from rayio.model.saving import Checkpointing
from rayio.model.training import Preparing, Training
from rayio.model.workflow import NO_STAGES, Workflow
from rayio.place import BEGINNING, NOTHING_TAKEN, Start
from rayio.scenario.cluster import Cluster
from rayio.scenario.costs import Costs
from rayio.scenario.decode import Work
from rayio.scenario.failures import Failures
from rayio.scenario.meetings import ALL, Meetings
from rayio.scenario.schedule import in_epoch
from rayio.scenario.storage import StorageParameters
from rayio.scenario.trace import Trace
from rayio.scenario.turns import BY_FILE
from rayio.schema.distribution import NO_TIME
from rayio.seeds import Draws
from rayio.storage.address import join
from rayio.storage.base import Storage
from rayio.storage.layers.layer import Layer
from rayio.storage.model import DeviceSpec
from rayio.storage.stores.opening import Settings, Store, gap_at

#: Default share of a node's memory for batches (Ray's object store, or free memory) that a run's windows may take.
IN_FLIGHT_SHARE = 0.3


@dataclass(frozen=True)
class Plan:
    """The parameters of all roles of a run; ``rayio.model.planning.plan_of`` makes it."""

    seed: int
    #: True with modelled storage (always on the virtual engine).
    modelled: bool
    cluster: Cluster
    loader: LoaderSpec
    format: str
    training_phase: Phase
    #: Expected bytes of all samples.
    dataset_bytes: float
    #: Which ranks wait for each other, and after which steps; what a rank does between a batch and its compute.
    meetings: Meetings
    preparing: Preparing
    evaluation: EvaluationPhase | None
    checkpointing: Checkpointing | None
    #: The modelled storage system, and the distribution of its first-byte latencies.
    storage: StorageParameters
    first_byte: Draws
    stores: Settings
    trace: Trace
    #: Costs of the Ray engine's messages, which the virtual clock adds.
    costs: Costs
    #: Seconds by which taking a batch holds a rank longer on a wall clock, if rayio's readers model another loader.
    held_seconds: float = 0.0
    #: The value of ``loader.max_bytes_in_flight: auto`` per node on this engine; None is no bound.
    auto_bytes_in_flight: int | None = None
    #: True if the compute of ranks is work on processors, not a sleep.
    computes_on_core: bool = False
    #: Layers between readers and storage, the innermost first.
    layers: tuple[Layer, ...] = ()
    #: How close ranges of a file are one request, in bytes, because the modelled system is an object store.
    modelled_gap: int = 0
    #: The start of the run. Earlier steps are skipped, with their checkpoints and evaluations.
    start: Start = BEGINNING
    #: What dies, and the deaths at a step in this attempt.
    failures: Failures | None = None
    #: Processes that come and go.
    workflow: Workflow = NO_STAGES
    doomed: tuple[Doom, ...] = ()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.cluster.world_size

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Steps in each epoch of every rank; without ``drop_last``, of the ranks with the most."""
        return tuple(map(self._sampler.most_steps, range(self.training_phase.epochs)))

    def steps_of(self, rank: int) -> tuple[int, ...]:
        """Return the steps of one rank in each epoch."""
        return tuple(self._sampler.steps(epoch, rank) for epoch in range(self.training_phase.epochs))

    @property
    def payload(self) -> bool:
        """True if batches carry their bytes."""
        return self.loader.payload

    @property
    def is_queued_in_rank(self) -> bool:
        """True if prefetch queues are in the processes of their ranks."""
        return self.loader.queue == "in_rank" and self.loader.num_workers > 0

    @property
    def max_bytes_in_flight(self) -> int | None:
        """Bound on the bytes that the queues of one node may have leased or ready; None is no bound."""
        chosen = self.loader.max_bytes_in_flight
        return self.auto_bytes_in_flight if chosen == "auto" else chosen

    def __getstate__(self) -> dict[str, Any]:
        """Return the parameters alone; derived values are computed again where needed."""
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    def node_of_rank(self, rank: int) -> int:
        """Return the node of a rank, its queue and its barrier call."""
        return self.cluster.node_of(rank)

    def node_of_reader(self, rank: int, worker: int) -> int:
        """Return the node of a reader: its rank's, or the next in turn over all nodes, or over those of readers.

        Readers that share a process stay together. If nodes differ in cores, turns are proportional to cores. A reader
        that waits for a pool node has the first possible one.
        """
        if self.is_pooled(worker):
            return self.cluster.all_nodes
        if self.cluster.placement == "colocated":
            return self.node_of_rank(rank)
        turn = rank if self.loader.worker == "thread" else rank * self.loader.num_workers + worker
        return self._turns[turn % len(self._turns)]

    def is_pooled(self, worker: int) -> bool:
        """Return True if a rank's worker of this number is on a pool node."""
        scaling = self.loader.scaling
        return self.cluster.has_pool and scaling is not None and worker >= scaling.min

    @cached_property
    def _turns(self) -> Sequence[int]:
        return self.cluster.turns()

    def node_of_writer(self, writer: int) -> int:
        """Return the node of a checkpoint writer: its rank's; dedicated ones are in turn over all nodes."""
        if self.checkpointing is None:
            raise ValueError("without checkpoints there are no writers")
        return self.checkpointing.writers.node(writer, self.checkpointing.topology)

    def readers(self) -> Iterator[tuple[int, int]]:
        """Yield the (rank, worker) of every reader."""
        yield from ((rank, worker) for rank in range(self.world_size) for worker in range(self.loader.num_workers))

    @property
    def num_writers(self) -> int:
        """Number of checkpoint writers."""
        return 0 if self.checkpointing is None else len(self.checkpointing.sizes)

    def writers_of(self, ranks: Iterable[int]) -> Iterable[int]:
        """Return the numbers of the writers of some ranks' shards, and of the one that completes checkpoints."""
        return () if self.checkpointing is None else self.checkpointing.writers_of(ranks)

    @property
    def has_barrier(self) -> bool:
        """True if ranks wait for each other."""
        return self.meetings.are_any

    def meets(self, rank: int, epoch: int, step: int, group: int = ALL) -> bool:
        """Return True if a rank meets a group at a step."""
        has_step = step < in_epoch(self.meetings.steps, epoch) or step < self._sampler.steps(epoch, rank)
        return has_step and self.meetings.group(rank, epoch, step) == group

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
        return form_of(self.format, self.layout)

    def sampler(self, num_ranks: int = 1) -> Sampler:
        """Return the sampler of training, with a cache for ``num_ranks`` ranks."""
        return self._sampler.cached_for(num_ranks)

    def samplers(self, num_ranks: int = 1) -> Phased[Sampler]:
        """Return the samplers of training and of evaluation."""
        training = self.sampler(num_ranks)
        held_out = training if self.evaluation is None else self.evaluation.sampler.cached_for(num_ranks)
        return Phased(training, held_out, len(self.steps))

    def is_evaluation(self, epoch: int) -> bool:
        """Return True if an epoch's number is an evaluation's."""
        return epoch >= len(self.steps)

    def evaluation_steps_of(self, rank: int) -> tuple[int, ...]:
        """Return the steps of one rank in each evaluation, by epoch number, after zeros for the training epochs."""
        if self.evaluation is None:
            return ()
        return (0,) * len(self.steps) + (self.evaluation.sampler.steps(0, rank),) * self.evaluation.epochs

    def data_storage(self, make: Callable[[str], Storage]) -> Storage:
        """Return a reader's storage of the dataset's folder and the evaluation's; ``make`` opens a folder."""
        training = make(self.training_phase.path)
        evaluation = training if self.evaluation is None else make(self.evaluation.path)
        return training if evaluation is training else PhasedStorage(training, evaluation, len(self.steps))

    @property
    def _named(self) -> Phased[str]:
        """Return the prefix of file names for layers: the evaluation's have their folder, as names may be equal."""
        folder, of = self.training_phase.path, self.evaluation
        return Phased("", "" if of is None or of.path == folder else f"{of.path}/", len(self.steps))

    def gap(self, root: str | Path = "") -> Phased[int]:
        """Return how close ranges of a file are one request; relative paths start from ``root``."""
        training = self._gap_at(root, self.training_phase.path)
        evaluation = training if self.evaluation is None else self._gap_at(root, self.evaluation.path)
        return Phased(training, evaluation, len(self.steps))

    def _gap_at(self, root: str | Path, path: str) -> int:
        return max(self.modelled_gap, gap_at(join(str(root), path)))

    def loading(self, num_ranks: int = 1, root: str | Path = "") -> Loading:
        """Return the loading of ``num_ranks`` ranks, for readers and queues; ``root`` is that of relative paths."""
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
            named=self._named if any(layer.needs_files for layer in self.layers) else None,
            modelled_work=work if self.modelled else None,
            decoding=None if self.modelled else work,
            threads=self.loader.decode_threads,
            gap=self.gap(root),
            ahead=self.loader.io_depth > 1,
        )

    def check_memory(self, free: int) -> None:
        """Refuse a real run whose readers keep more of the files than a node's free memory (bytes).

        Raises:
            ScenarioError: one line with both numbers.
        """
        if self.modelled:
            return
        if self.checkpointing is not None:
            self.checkpointing.check_memory(free)
        loader, access = self.loader, ACCESSES[self.loader.file_access]
        streams = self._sampler.streams
        buffer = streams.buffer if streams is not None and streams.shuffle == "buffer" else 0
        files = Files(self.form, self.layout, loader.file_access_options, buffer)
        each, setting = access.memory(files), access.setting(files)
        for line in too_much(setting, each, self.cluster, loader.num_workers, free, "free on this machine"):
            raise ScenarioError(line)

    def queue(self, rank: int, *, evaluating: bool = False) -> QueueSpec:
        """Return the parameters of a rank's queue; evaluation has another: each half of the window if both are open."""
        loader, bound = self.loader, self.max_bytes_in_flight
        shared_by = len(self.cluster.ranks_of(self.node_of_rank(rank)))
        if self.evaluation is not None and self.evaluation.is_amid_epochs:
            shared_by *= 2
        return QueueSpec(
            rank=rank, num_workers=loader.num_workers, scaling=loader.scaling, has_pool=self.cluster.has_pool,
            prefetch_factor=loader.prefetch_factor,
            steps=self.evaluation_steps_of(rank) if evaluating else self.steps_of(rank),
            assignment="static" if evaluating and loader.assignment == BY_FILE else loader.assignment,
            turns=None if evaluating else self._sampler.turns(rank),
            in_order=loader.in_order,
            max_bytes=None if bound is None else bound // shared_by,
        )  # fmt: skip

    def training(self, rank: int) -> Training:
        """Return the parameters of a rank's training."""
        phase, held_out, evaluating = self.training_phase, self.evaluation, None
        if held_out is not None:
            evaluating = Training(rank, self.evaluation_steps_of(rank), held_out.of_node(self.node_of_rank(rank)))
        return Training(
            rank,
            self.steps_of(rank),
            phase.of_node(self.node_of_rank(rank)),
            meetings=self.meetings,
            preparing=self.preparing,
            checkpointing=self.checkpointing,
            evaluation=evaluating,
            evaluating=None if held_out is None else held_out.schedule,
        )

    def store(self, root: str | Path, path: str) -> Store:
        """Open the store at a path or address of the scenario; relative ones start from ``root``."""
        return storage.open(join(str(root), path), self.stores)

    @cached_property
    def device(self) -> DeviceSpec:
        """The rates of the modelled storage system."""
        return self.storage.device

    @property
    def devices(self) -> list[DeviceSpec]:
        """The rates of each modelled device: those of storage, then those of a burst tier."""
        tier = [] if self.checkpointing is None else self.checkpointing.tier_devices
        return [self.device] * self.num_devices + tier

    def device_of_node(self, node: int) -> int:
        """Return the number of a node's device: its own, or the cluster's."""
        return self.state_of_node(node) if self.storage.scope == "node" else 0

    @property
    def is_divided(self) -> bool:
        """True if a layer needs the samples of a batch separately."""
        return any(layer.needs_samples for layer in self.layers)

    def state_of_node(self, node: int) -> int:
        """Return the number of a node's state; pool nodes beyond those that readers fill share some."""
        beyond = node - self.cluster.all_nodes
        return node if beyond < 0 else node - beyond + beyond % self.num_pooled

    def shared_by(self, layer: Layer) -> Sequence[int]:
        """Return the numbers of a layer's shared states: of all nodes with readers, pool nodes last; or one."""
        if layer.sharing != "node":
            return (0,) if layer.sharing else ()
        first = self.cluster.all_nodes
        return (*self.cluster.reading_nodes, *range(first, first + self.num_pooled))

    @cached_property
    def num_pooled(self) -> int:
        """Number of pool nodes that readers can fill; further ones share a device."""
        pool, loader = self.cluster.reader_pool, self.loader
        least = loader.num_workers if loader.scaling is None else loader.scaling.min
        return 0 if pool is None else pool.filled_by((loader.num_workers - least) * self.world_size)

    @property
    def num_devices(self) -> int:
        """Number of modelled devices."""
        return self.device_of_node(self.cluster.all_nodes + self.num_pooled - 1) + 1

    def tallies(self) -> list[Tally]:
        """Return an empty tally of this attempt for each rank."""
        taken = None if self.loader.in_order else NOTHING_TAKEN
        return [Tally(rank, attempt=self.start.attempt, taken=taken) for rank in range(self.world_size)]

    def planned_numbers(self) -> list[Tally]:
        """Return the planned numbers of steps and samples of every rank, with evaluations."""
        tallies = self.tallies()
        for tally in tallies:
            for sampler, epochs, first in self._planned_epochs(tally.rank):
                times, alike = (len(epochs), epochs[:1]) if sampler.has_equal_epochs else (1, epochs)
                for steps, samples in (sampler.left(epoch, tally.rank, first) for epoch in alike):
                    tally.steps += times * steps
                    tally.samples += times * samples
        return tallies

    def _planned_epochs(self, rank: int) -> Iterator[tuple[Sampler, range, int]]:
        """Yield a rank's epochs from the start on, with evaluations: sampler, epochs, and first step."""
        start, epochs = self.start, len(self.steps)
        if start.step:
            yield self._sampler, range(start.epoch, min(start.epoch + 1, epochs)), start.step
        yield self._sampler, range(start.epoch + (start.step > 0), epochs), 0
        if self.evaluation is not None:
            schedule, steps = self.evaluation.schedule, self._sampler.steps(start.epoch, rank)
            past = schedule.number_before(start.epoch, start.step, steps)
            yield self.evaluation.sampler, range(epochs + past, epochs + self.evaluation.epochs), 0

    def planned(self) -> list[Tally]:
        """Return the planned consumption of every rank, with the digest of its sample ids."""
        tallies, alike = self.tallies(), dict[tuple[int, range, int], tuple[Sampler, list[int]]]()
        for tally in tallies:
            for number, (sampler, epochs, first) in enumerate(self._planned_epochs(tally.rank)):
                alike.setdefault((number, epochs, first), (sampler, []))[1].append(tally.rank)
        for (_, epochs, first), (sampler, ranks) in alike.items():
            for epoch in epochs:
                for rank, (steps, samples, digest) in zip(ranks, planned_of(sampler, epoch, ranks, first), strict=True):
                    tallies[rank].plan(steps, samples, digest)
        return tallies
