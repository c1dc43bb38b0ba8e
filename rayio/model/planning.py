"""Scenario -> plan: the only module that derives a run's parameters from a scenario."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from rayio.data.sampler import Sampler
from rayio.kinds import SAVERS
from rayio.model.burst import BurstTier
from rayio.model.manifest import Identity, Restored
from rayio.model.plan import Plan
from rayio.model.plan_parts import EvaluationPhase, LoaderSpec, Phase
from rayio.model.saving import Checkpointing
from rayio.model.training import Preparing
from rayio.model.workflow import Workflow
from rayio.place import checkpoint_place
from rayio.scenario import derive, evaluation
from rayio.scenario.burst import Burst
from rayio.scenario.checkpoint import NOTHING
from rayio.scenario.costs import Costs, charged
from rayio.scenario.layers import layers_of
from rayio.scenario.meetings import meetings_of
from rayio.scenario.model import Scenario
from rayio.scenario.pace import USUAL, Pace
from rayio.scenario.stage_checks import placed
from rayio.scenario.storage import UNKNOWN, StorageParameters, modelled_gap
from rayio.scenario.workers import Autoscaled
from rayio.schema.distribution import NO_TIME, LogNormal
from rayio.schema.every import Every
from rayio.seeds import Draws
from rayio.storage.presets import PRESETS


@dataclass(frozen=True)
class Times:
    """Times in place of the scenario's, such as measured ones; None keeps the scenario's."""

    compute: Draws | None = None
    decode: Draws | None = None
    first_byte: Draws | None = None
    #: Those of writing to a burst tier; ``first_byte`` then has the drains.
    burst: Draws | None = None


def plan_of(
    scenario: Scenario, modelled: bool, auto_bytes_in_flight: int | None = None, times: Times | None = None
) -> Plan:
    """Return the plan of a scenario's run.

    ``modelled`` means modelled storage. ``auto_bytes_in_flight`` is the value of ``loader.max_bytes_in_flight: auto``
    per node; None is no bound. ``times`` have priority over the scenario's.

    >>> plan_of(load("unet3d-small"), modelled=True).steps
    (12, 12, 12, 12, 12)
    """
    train, replaced = scenario.train, times or Times()
    storage = storage_of(scenario)
    return Plan(
        seed=scenario.seed,
        modelled=modelled,
        cluster=scenario.cluster,
        loader=_loader(scenario, modelled, replaced),
        format=scenario.dataset.format,
        training_phase=Phase(
            path=scenario.dataset.path,
            sampler=Sampler.from_scenario(scenario),
            epochs=derive.epochs(scenario),
            compute=replaced.compute or derive.compute_times(scenario),
            seed=scenario.seed,
            pace=derive.pace(scenario) if replaced.compute is None else USUAL,
        ),
        dataset_bytes=derive.dataset_bytes(scenario),
        meetings=meetings_of(scenario),
        preparing=_preparing(scenario),
        evaluation=_evaluation(scenario),
        checkpointing=_checkpointing(scenario, replaced.burst, modelled=modelled),
        storage=storage,
        first_byte=replaced.first_byte or storage.first_byte,
        stores=scenario.stores,
        trace=scenario.trace,
        costs=_charged(scenario),
        held_seconds=_held(scenario),
        auto_bytes_in_flight=auto_bytes_in_flight,
        computes_on_core=train.compute_cores > 0,
        layers=layers_of(scenario, modelled=modelled),
        modelled_gap=modelled_gap(scenario) if modelled else 0,
        failures=scenario.failures,
        workflow=Workflow(placed(scenario), scenario.seed, scenario.cluster.nodes),
    )


def _preparing(scenario: Scenario) -> Preparing:
    train, copy = scenario.train, scenario.train.device_copy
    if copy is not None:
        copy = copy.model_copy(update={"bandwidth": copy.rate(pinned=scenario.loader.pin_memory)})
    return Preparing(copy, train.parallelism.bubble)


def _loader(scenario: Scenario, modelled: bool, times: Times) -> LoaderSpec:
    """Return the loader's parameters: by default batches carry bytes if bytes are really read."""
    loader = scenario.loader
    return LoaderSpec(
        kind=loader.kind,
        options=loader.options,
        num_workers=loader.max_workers,
        scaling=loader.num_workers if isinstance(loader.num_workers, Autoscaled) else None,
        prefetch_factor=loader.prefetch_factor,
        worker=loader.worker,
        io_depth=loader.io_depth,
        assignment=loader.assignment,
        in_order=loader.in_order,
        file_access=loader.file_access,
        file_access_options=loader.file_access_options,
        queue=loader.queue,
        pin_bandwidth=loader.pin_bandwidth if loader.pin_memory else None,
        decode=times.decode or loader.decode,
        decode_threads=loader.decode_threads,
        payload=not modelled if loader.payload == "auto" else loader.payload == "real",
        max_bytes_in_flight=loader.max_bytes_in_flight,
        node_window_bytes=derive.node_window_bytes(scenario),
    )


def _evaluation(scenario: Scenario) -> EvaluationPhase | None:
    phase, wanted = evaluation.phase_of(scenario), scenario.train.evaluate
    if phase is None or wanted is None or derive.phases(scenario) is not None:
        return None
    return EvaluationPhase(
        path=phase.dataset.path,
        sampler=Sampler.from_scenario(phase),
        epochs=phase.train.epochs,
        compute=derive.compute_times(phase),
        seed=phase.seed,
        pace=Pace(speeds=scenario.train.speeds),
        schedule=derive.schedule(scenario, wanted.every),
        is_amid_epochs=wanted.every.steps is not None,
    )


def _checkpointing(scenario: Scenario, burst: Draws | None, *, modelled: bool) -> Checkpointing | None:
    saved = scenario.checkpoint
    if saved is None:
        return None
    every = None if saved.phases is not None else saved.every
    seconds = None if every is None else every.seconds
    planned = Checkpointing(
        path=saved.path,
        state=saved.model,
        writers=saved.writers,
        topology=scenario.saving_topology,
        ranks=derive.world_size(scenario),
        sizes=derive.checkpoint_shards(scenario),
        schedule=derive.schedule(scenario, Every(steps=1) if every is None or seconds else every),
        seconds=seconds,
        phases=saved.phases,
        keep=saved.keep,
        incremental=saved.incremental,
        request_bytes=saved.request_bytes,
        fsync=saved.fsync,
        snapshot_rate=saved.snapshot_bandwidth if saved.asynchronous else None,
        engine="raw" if modelled else saved.engine,
        identity=_identity(scenario, modelled=modelled),
        epochs=derive.epochs(scenario),
        broadcast_seconds=_broadcast(scenario),
        restored=None if saved.restore == NOTHING else Restored(0, 0, saved.request_bytes),
        burst=None if saved.burst is None else _tier(scenario, saved.burst, burst),
        meets=scenario.train.sync.meets,
    )
    if saved.incremental is None or saved.restore == NOTHING:
        return planned
    return replace(
        planned, restored=_restored(planned, saved.restore, derive.num_checkpoints(scenario)) or planned.restored
    )


def _restored(saved: Checkpointing, wanted: str, number: int) -> Restored | None:
    """Return the last of a whole run's ``number`` checkpoints, or the one in a ``wanted`` folder; None if none is due.

    Modelled storage has no other: a run on files restores what is there.
    """
    place = checkpoint_place(wanted) or (saved.schedule.step(number - 1) if number else None)
    if place is None or saved.number_of(*place) < 0:
        return None
    return saved.restored_at(*place)


def _tier(scenario: Scenario, wanted: Burst, first_byte: Draws | None) -> BurstTier:
    """Return a burst tier; ``first_byte`` are measured times, with those of drains in the storage's."""
    saved, parameters = scenario.checkpoint, _parameters(scenario, wanted.model, is_throttled=False)
    assert saved is not None
    return BurstTier(
        path=wanted.path,
        storage=parameters,
        first_byte=first_byte or parameters.first_byte,
        rooms=wanted.rooms(derive.checkpoint_shards(scenario), saved.writers, scenario.saving_topology),
        drain_rate=wanted.drain_bandwidth,
        is_read=first_byte is None,
    )


def _broadcast(scenario: Scenario) -> float:
    """Return the seconds in which rank 0 sends a restored state to all ranks; 0 if they read it themselves."""
    saved = scenario.checkpoint
    if saved is None or saved.phases is not None or not saved.writers.is_broadcast:
        return 0.0
    return scenario.train.sync.broadcast_seconds(derive.world_size(scenario), derive.checkpoint_bytes(scenario))


def _identity(scenario: Scenario, *, modelled: bool) -> Identity:
    """Return what the checkpoints of a scenario are of."""
    saved, topology = scenario.checkpoint, scenario.saving_topology
    assert saved is not None
    plain = json.loads(saved.model_dump_json(include={"model", "writers"}, exclude_none=True))
    split = {key: getattr(topology, key) for key in ("tensor_parallel", "pipeline_parallel", "zero_stage")}
    layout = {"ranks": topology.ranks, "writers": plain["writers"], **split}
    if saved.subset_of is not None:
        layout["first ranks"] = derive.world_size(scenario)
    if not modelled and saved.engine != "raw":
        layout["engine"] = f"{saved.engine} ({SAVERS[saved.engine].library})"
    return Identity(scenario.name, plain["model"], layout)


#: rayio's loader, and the name of its costs.
OUR_LOADER, OURS = "actors", "ray"


def _charged(scenario: Scenario) -> Costs:
    """Return the costs that the virtual engine adds; batches without bytes are not copied."""
    costs = scenario.charges
    if scenario.loader.payload != "none":
        return costs
    return costs.model_copy(update={"put_bandwidth": None, "receive_bandwidth": None})


def _held(scenario: Scenario) -> float:
    """Return the seconds that a batch of the loader named in ``costs`` holds its rank beyond rayio's loader."""
    named = scenario.costs
    if not isinstance(named, str) or scenario.loader.kind != OUR_LOADER:
        return 0.0
    return max(0.0, charged(named).receive - charged(OURS).receive)


#: Placeholder for storage that is never used.
_NOBODYS = StorageParameters(first_byte=NO_TIME, connection_bandwidth=1.0, bandwidth=1.0)


def storage_of(scenario: Scenario) -> StorageParameters:
    """Return the modelled storage system: the scenario's, or a preset's numbers on its cluster.

    If it refuses requests above a rate (``storage.throttle``), requests do not wait for a rate.
    """
    return _parameters(scenario, scenario.storage.model, is_throttled=scenario.storage.throttle is not None)


def _parameters(scenario: Scenario, model: str | StorageParameters, *, is_throttled: bool) -> StorageParameters:
    if not isinstance(model, str):
        return model
    if model == UNKNOWN:  # such a run is refused before it begins: see checks.check_simulated
        return _NOBODYS
    preset = PRESETS[model]
    parts = len(scenario.cluster.reading_nodes) if preset.shared_cap and preset.scope == "node" else 1
    capped = None if is_throttled else preset.requests_per_second
    return StorageParameters(
        first_byte=LogNormal(median=preset.first_byte_median, sigma=preset.first_byte_sigma, max=preset.first_byte_max),
        open=LogNormal(median=preset.open_median, sigma=preset.open_sigma),
        connection_bandwidth=preset.connection_bandwidth,
        bandwidth=preset.bandwidth,
        requests_per_second=capped and capped / parts,
        opens_per_second=preset.opens_per_second and preset.opens_per_second / parts,
        scope=preset.scope,
        gap=preset.gap,
        upload_parts=preset.upload_parts,
        servers=scenario.storage.servers,
    )
