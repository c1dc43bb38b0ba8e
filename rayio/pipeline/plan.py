"""Scenario -> Plan: which roles there are, where they live, and what each is built from.

A plan is parameters, never lists: it pickles to a few kilobytes whatever the dataset and the number of ranks, and any
actor can be restarted with the plan and its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from rayio import storage
from rayio.data.formats import FORMATS, Format
from rayio.data.layout import Layout
from rayio.data.sampler import Sampler
from rayio.pipeline.checkpoint import Checkpointing
from rayio.pipeline.ledger import WORD, Tally
from rayio.pipeline.loading import Loading
from rayio.pipeline.phases import Phased, PhasedStorage
from rayio.pipeline.queue import QueueSpec
from rayio.pipeline.schedule import Schedule
from rayio.pipeline.training import Training
from rayio.scenario import derive, evaluation
from rayio.scenario.decode import Work
from rayio.scenario.distribution import Distribution, LogNormal
from rayio.scenario.model import NO_TIME, Scenario, StorageParameters
from rayio.storage.address import join
from rayio.storage.base import Storage
from rayio.storage.model import DeviceSpec
from rayio.storage.presets import PRESETS
from rayio.storage.stores import Store

#: Share of a node's memory for batches (Ray's object store, or free memory) that a run's windows may take unless the
#: scenario says otherwise.
IN_FLIGHT_SHARE = 0.3


@dataclass(frozen=True)
class Plan:
    """All that the roles of a run are built from.

    ``modelled`` says that storage is a model (always on the virtual engine). ``auto_bytes_in_flight`` is what
    ``loader.max_bytes_in_flight: auto`` comes to on this engine, per node; None is no bound.
    """

    scenario: Scenario
    modelled: bool
    auto_bytes_in_flight: int | None = None

    @cached_property
    def world_size(self) -> int:
        """Number of ranks."""
        return derive.world_size(self.scenario)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Steps in each epoch of every rank, or without ``drop_last`` of those that have the most."""
        return (derive.steps_per_epoch(self.scenario),) * self.scenario.train.epochs

    def steps_of(self, rank: int) -> tuple[int, ...]:
        """The steps of one rank in each epoch."""
        return tuple(self._sampler.steps(epoch, rank) for epoch in range(self.scenario.train.epochs))

    @property
    def payload(self) -> bool:
        """Whether batches carry their bytes: unless said otherwise, exactly when bytes are really read."""
        chosen = self.scenario.loader.payload
        return not self.modelled if chosen == "auto" else chosen == "real"

    @property
    def max_bytes_in_flight(self) -> int | None:
        """Bound on the bytes that the queues of one node may have leased or ready; None is no bound."""
        chosen = self.scenario.loader.max_bytes_in_flight
        return self.auto_bytes_in_flight if chosen == "auto" else chosen

    def __getstate__(self) -> dict[str, Any]:
        """The parameters alone: what is worked out from them is worked out again where it is needed."""
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    # --- where roles live -------------------------------------------------------------------------------------------

    def node_of_rank(self, rank: int) -> int:
        """The node of a rank, of its queue and of its barrier call."""
        return rank // self.scenario.cluster.ranks_per_node

    def node_of_reader(self, rank: int, worker: int) -> int:
        """The node of a reader: beside its rank, or the next in turn over all nodes."""
        if self.scenario.cluster.placement == "colocated":
            return self.node_of_rank(rank)
        return (rank * self.scenario.loader.num_workers + worker) % self.scenario.cluster.nodes

    def node_of_writer(self, writer: int) -> int:
        """The node of a checkpoint writer: beside the rank it serves, dedicated ones in turn over all nodes."""
        if self.scenario.checkpoint is None:
            raise ValueError("there are no checkpoints, so no writer has a node")
        cluster = self.scenario.cluster
        return self.scenario.checkpoint.writers.node(writer, cluster.nodes, cluster.ranks_per_node)

    def readers(self) -> Iterator[tuple[int, int]]:
        """The (rank, worker) of every reader."""
        for rank in range(self.world_size):
            for worker in range(self.scenario.loader.num_workers):
                yield rank, worker

    @property
    def num_writers(self) -> int:
        """Number of checkpoint writers."""
        return derive.num_writers(self.scenario)

    def writers_of(self, ranks: Iterable[int]) -> Iterable[int]:
        """The numbers of the writers that some ranks send shards to."""
        if self.scenario.checkpoint is None:
            return ()
        writers, number = self.scenario.checkpoint.writers, self.num_writers
        return sorted({writer for rank in ranks for writer in writers.of_rank(rank, number)})

    @property
    def has_barrier(self) -> bool:
        """Whether ranks meet after each step."""
        return self.scenario.train.sync.meets

    def parties(self, epoch: int, step: int) -> int:
        """The number of ranks that meet at a step: those that have not run out of steps."""
        if epoch >= len(self.steps):
            return 0
        return self.world_size if step < self._fewest_steps else derive.ranks_at(self.scenario, step)

    @cached_property
    def _fewest_steps(self) -> int:
        """Steps that every rank has: each arrival at the barrier asks."""
        return derive.rank_steps(self.scenario)[0]

    def meets(self, rank: int, epoch: int, step: int) -> bool:
        """Say whether a rank is one of those that meet at a step."""
        return step < self._sampler.steps(epoch, rank)

    # --- what roles are built from ----------------------------------------------------------------------------------

    @cached_property
    def layout(self) -> Layout:
        """The dataset's files and sizes."""
        return self._sampler.layout

    @cached_property
    def _sampler(self) -> Sampler:
        return Sampler.from_scenario(self.scenario)

    @property
    def form(self) -> Format:
        """The dataset's format."""
        return FORMATS[self.scenario.dataset.format]

    def sampler(self, num_ranks: int = 1) -> Sampler:
        """Make the function from (epoch, rank, step) to training samples, with a cache for so many ranks."""
        return self._sampler.cached_for(num_ranks)

    def samplers(self, num_ranks: int = 1) -> Phased[Sampler]:
        """Make the functions from (epoch, rank, step) to samples of training and of evaluation."""
        training = self.sampler(num_ranks)
        held_out = training if self._held_out is None else self._held_out.cached_for(num_ranks)
        return Phased(training, held_out, len(self.steps))

    @cached_property
    def evaluation(self) -> Scenario | None:
        """The evaluation phase as a scenario of its own; None when there is none."""
        return evaluation.phase_of(self.scenario)

    @cached_property
    def _held_out(self) -> Sampler | None:
        return None if self.evaluation is None else Sampler.from_scenario(self.evaluation)

    def is_evaluation(self, epoch: int) -> bool:
        """Say whether an epoch's number is that of an evaluation."""
        return epoch >= len(self.steps)

    def evaluation_steps_of(self, rank: int) -> tuple[int, ...]:
        """The steps of one rank in each evaluation, by epoch number: those of training come first, as zeros."""
        if self.evaluation is None or self._held_out is None:
            return ()
        return (0,) * len(self.steps) + (self._held_out.steps(0, rank),) * self.evaluation.train.epochs

    def data_storage(self, make: Callable[[str], Storage]) -> Storage:
        """A reader's storage, of folders that ``make`` opens: the dataset's, and with it the evaluation's."""
        training = make(self.scenario.dataset.path)
        if self.evaluation is None or self.modelled:
            return training
        return PhasedStorage(training, make(self.evaluation.dataset.path), len(self.steps))

    def loading(self, num_ranks: int = 1) -> Loading:
        """Make what readers and queues of ``num_ranks`` ranks are built from."""
        decode = self.scenario.loader.decode
        work = decode if isinstance(decode, Work) else None
        if work is not None and not self.modelled:
            work.prepare()
        return Loading(
            self.samplers(num_ranks),
            self.form,
            seed=self.scenario.seed,
            decode=NO_TIME if isinstance(decode, Work) else decode,
            payload=self.payload,
            modelled=self.modelled,
            itemised=self.scenario.trace.is_itemised,
            rate=work.rate if work is not None and self.modelled else None,
            decoding=None if self.modelled else work,
        )

    def queue(self, rank: int, *, evaluating: bool = False) -> QueueSpec:
        """Make what a rank's queue is built from; evaluation has another, and where both hold batches, half of each."""
        loader, wanted = self.scenario.loader, self.scenario.train.evaluate
        bound = self.max_bytes_in_flight
        shared_by = self.scenario.cluster.ranks_per_node
        if self.evaluation is not None and wanted is not None and wanted.every.steps is not None:
            shared_by *= 2
        return QueueSpec(
            rank=rank,
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            steps=self.evaluation_steps_of(rank) if evaluating else self.steps_of(rank),
            assignment=loader.assignment,
            in_order=loader.in_order,
            max_bytes=None if bound is None else bound // shared_by,
        )

    @cached_property
    def sync_seconds(self) -> float:
        """How long the ranks stay together once all are there, in seconds."""
        return derive.allreduce_seconds(self.scenario.train.sync, self.world_size)

    @cached_property
    def checkpointing(self) -> Checkpointing | None:
        """The checkpoints of the run; None when there are none."""
        section = self.scenario.checkpoint
        return None if section is None else Checkpointing(self.scenario, section)

    def training(self, rank: int) -> Training:
        """Make what a rank is built from."""
        phase, evaluating, schedule = self.evaluation, None, None
        if phase is not None:
            evaluating = Training(rank, self.evaluation_steps_of(rank), phase.train.compute, seed=phase.seed)
            schedule = Schedule(evaluation.period_of(self.scenario), derive.steps_per_epoch(self.scenario))
        return Training(
            rank,
            self.steps_of(rank),
            self.scenario.train.compute,
            seed=self.scenario.seed,
            sync_seconds=self.sync_seconds,
            checkpointing=self.checkpointing,
            evaluation=evaluating,
            evaluating=schedule,
            factor=derive.straggling(self.scenario, rank),
        )

    # --- real storage -----------------------------------------------------------------------------------------------

    def store(self, root: str | Path, path: str) -> Store:
        """Open the store at a path or address of the scenario; relative ones start from ``root``."""
        return storage.open(join(str(root), path), self.scenario.stores)

    # --- modelled storage -------------------------------------------------------------------------------------------

    @cached_property
    def storage(self) -> StorageParameters:
        """The modelled storage system: the scenario's own, or what a preset's numbers mean on this cluster."""
        model = self.scenario.storage.model
        if not isinstance(model, str):
            return model
        preset = PRESETS[model]
        parts = self.scenario.cluster.nodes if preset.shared_cap and preset.scope == "node" else 1
        return StorageParameters(
            first_byte=LogNormal(
                median=preset.first_byte_median, sigma=preset.first_byte_sigma, max=preset.first_byte_max
            ),
            open=LogNormal(median=preset.open_median, sigma=preset.open_sigma),
            connection_bandwidth=preset.connection_bandwidth,
            bandwidth=preset.bandwidth,
            requests_per_second=preset.requests_per_second and preset.requests_per_second / parts,
            opens_per_second=preset.opens_per_second and preset.opens_per_second / parts,
            scope=preset.scope,
        )

    @cached_property
    def device(self) -> DeviceSpec:
        """What the modelled storage system can do."""
        chosen = self.storage
        return DeviceSpec(
            chosen.connection_bandwidth,
            chosen.bandwidth,
            chosen.requests_per_second,
            chosen.opens_per_second,
            chosen.open if chosen.open.expected > 0 else None,
        )

    @property
    def first_byte(self) -> Distribution:
        """The first-byte latency of the modelled storage system."""
        return self.storage.first_byte

    def device_of_node(self, node: int) -> int:
        """The number of the device that a node uses: its own, or the one that the cluster shares."""
        return node if self.storage.scope == "node" else 0

    @property
    def num_devices(self) -> int:
        """Number of modelled devices."""
        return self.device_of_node(self.scenario.cluster.nodes - 1) + 1

    # --- the books --------------------------------------------------------------------------------------------------

    def planned_numbers(self) -> list[Tally]:
        """Work out how many steps and samples every rank is meant to consume, evaluations among them."""
        tallies = [Tally(rank) for rank in range(self.world_size)]
        for sampler, epochs in self._planned_epochs():
            for tally in tallies:
                tally.steps += len(epochs) * sampler.steps(0, tally.rank)
                tally.samples += len(epochs) * sampler.samples(0, tally.rank)
        return tallies

    def _planned_epochs(self) -> Iterator[tuple[Sampler, range]]:
        yield self._sampler, range(len(self.steps))
        if self.evaluation is not None and self._held_out is not None:
            yield self._held_out, range(len(self.steps), len(self.steps) + self.evaluation.train.epochs)

    def planned(self) -> list[Tally]:
        """Work out what every rank is meant to consume, down to the digest of its sample ids."""
        tallies = [Tally(rank) for rank in range(self.world_size)]
        for sampler, epochs in self._planned_epochs():
            for tally in tallies:
                for epoch in epochs:
                    steps, samples, digest = sampler.planned(epoch, tally.rank)
                    tally.steps += steps
                    tally.samples += samples
                    tally.digest = (tally.digest + digest) & WORD
        return tallies
