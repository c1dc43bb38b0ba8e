"""Checks over sections: contradictions, keys that do nothing, and every derived number by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rayio.errors import ScenarioError
from rayio.kinds import FORMATS, LAYERS, LOADERS, STORAGE_MODELS
from rayio.place import MAX_RANKS, MAX_STEPS
from rayio.scenario import apart, checkpoint_checks, derive, duration, evaluation, failure_checks, shards, stage_checks
from rayio.scenario.compute import ByBatchSize
from rayio.scenario.decode import Work
from rayio.scenario.kind import Kind
from rayio.scenario.layers import layers_of
from rayio.scenario.meetings import allreduce_seconds, meeting_period
from rayio.scenario.model import Scenario
from rayio.scenario.saved_bytes import increment_bytes
from rayio.scenario.storage import UNKNOWN
from rayio.scenario.workers import Autoscaled
from rayio.schema.choice import Choosing, options_of
from rayio.schema.fields import Section, listed, show
from rayio.storage.address import join, scheme_of
from rayio.storage.stores.opening import STORES
from rayio.units import format_bytes, format_seconds

T = TypeVar("T")

#: Roles of a run: on the virtual clock they share a process, and take about 10 KiB each.
MAX_ROLES = 1 << 20

#: Files and bytes of what no checkpoint has.
NOTHING = (0, 0)

#: Derived numbers of training, of which a run that only saves and restores has none.
OF_TRAINING = (
    "samples_per_epoch", "steps_per_epoch", "fewest_steps_per_epoch", "dropped_samples", "capped_samples",
    "batch_bytes", "window_steps", "window_bytes", "read_demand", "total_read_demand",
)  # fmt: skip

RATE_IS_MISSING = "give loader.decode.rate, the bytes per second of one worker"


def check(scenario: Scenario) -> None:
    """Refuse values that contradict each other.

    Raises:
        ScenarioError: one line that names the keys, their values and what would be allowed.
    """
    for message in contradictions(scenario):
        raise ScenarioError(message)


def check_simulated(scenario: Scenario) -> None:
    """Refuse keys that no model of storage can replace.

    Raises:
        ScenarioError: one line that names the key, its value and what to do.
    """
    for message in not_simulated(scenario):
        raise ScenarioError(message)


def not_simulated(scenario: Scenario) -> Iterator[str]:
    """Return a line for each key that can be run, but not simulated."""
    decode = scenario.loader.decode
    if scenario.storage.model == UNKNOWN:
        yield (
            f"storage.model={UNKNOWN}: nobody described the storage of {scenario.name}, so nothing can be predicted "
            f"with it; set storage.model to a preset ({', '.join(STORAGE_MODELS)}) or to parameters"
        )
    learned, form = scenario.charges.cpu.format, scenario.dataset.format
    if scenario.cluster.cores is not None and learned not in ("", form):
        yield (
            f"costs.cpu.format={learned}: what parsing takes of processors was learned from {learned}, and "
            f"dataset.format={form}; calibrate a run of {form}, or set costs.cpu.format={form} to take it for that"
        )
    if scenario.checkpoint is not None and scenario.charges.checkpoint_bytes == 0:
        yield (
            "costs.checkpoint_bytes=0: the run that costs were calibrated from saved no checkpoint, so nobody knows "
            "what one takes; calibrate a run with checkpoints, or set costs.checkpoint_bytes=none and costs.checkpoint "
            "to what one takes"
        )
    background, cores = scenario.charges.cpu.background, scenario.cluster.cores
    if cores is not None and background >= (fewest := min(cores) if isinstance(cores, tuple) else cores):
        yield (
            f"costs.cpu.background={background:g}: what processes do all the time would take all {fewest} cores of a "
            "node; set less, or more cluster.cores"
        )
    if isinstance(decode, Work) and decode.rate is None:
        yield f"loader.decode={decode.kind}: modelled storage has no bytes; {RATE_IS_MISSING}"


def sections(scenario: Scenario) -> list[Section]:
    """Return the sections that are given."""
    return [value for _, value in scenario if isinstance(value, Section)]


def of_kinds(scenario: Scenario, ask: Callable[[Kind], Iterable[T]]) -> list[T]:
    """Return the answers of every kind that the scenario chose by name, in the order of its sections.

    Raises:
        ScenarioError: a kind of another package raised an error; the line names the package.
    """
    answers: list[T] = []
    for section in sections(scenario):
        if not isinstance(section, Choosing):
            continue
        for choice in section.choices:
            name = getattr(section, choice.key)
            if isinstance(kind := section.kind_of(choice), Kind):
                with choice.registry.answerable(name):
                    answers += ask(kind)
    for layer in layers_of(scenario, modelled=True):
        with LAYERS.answerable(layer.name):
            answers += ask(layer)
    return answers


def hidden_kinds(scenario: Scenario) -> list[str]:
    """Return a note for each package whose kind is not used, because a built-in kind has its name."""
    chosen = [
        (choice.registry, getattr(section, choice.key))
        for section in sections(scenario) if isinstance(section, Choosing) for choice in section.choices
    ]  # fmt: skip
    return [
        f"{registry.title} {name!r} is rayio's own; the one of {package} is not used: its authors must rename it"
        for registry, name in chosen
        for package in registry.hidden(name)
    ]


def contradictions(scenario: Scenario) -> Iterator[str]:
    """List each pair of values that contradict each other, one line a pair."""
    samples, ranks = derive.num_samples(scenario), derive.world_size(scenario)
    cluster, dataset, loader, train = scenario.cluster, scenario.dataset, scenario.loader, scenario.train
    who = f"cluster.nodes={cluster.nodes} × cluster.ranks_per_node={show(cluster.ranks_per_node)}"
    files = f"dataset.num_files={dataset.num_files} × dataset.samples_per_file={dataset.samples_per_file}"
    if derive.num_files(scenario) != dataset.num_files:
        files += f" × {ranks} ranks (loader.scaling=weak)"
    share = derive.samples_per_rank(scenario)[0]
    if ranks > MAX_RANKS:
        yield f"{who}: {ranks} ranks; at most {MAX_RANKS} are possible"
    elif (roles := derive.num_roles(scenario)) > MAX_ROLES:
        yield (
            f"loader.num_workers={loader.num_workers}: {who} and their readers, queues and writers are {roles} roles, "
            f"each of which takes some KiB of memory; at most {MAX_ROLES} are possible"
        )
    elif samples > derive.MAX_SAMPLES:
        yield f"{files}: {samples} samples; at most {derive.MAX_SAMPLES} are possible"
    elif share < 1 and not shards.are_whole(scenario):
        yield f"{who}: {ranks} ranks for the {samples} samples of {files}; use at most {samples} ranks"
    elif loader.drop_last and loader.batch_size > share:
        many = f"{ranks} ranks need" if ranks > 1 else "1 rank needs"
        yield (
            f"loader.batch_size={loader.batch_size}: {many} {loader.batch_size * ranks} samples for a"
            f" step, {files} has {samples}{' for each of them' * derive.is_replicated(scenario)}; use at most {share}"
            ", or loader.drop_last=false"
        )
    else:
        yield from shards.refusals(scenario, derive.num_files(scenario), derive.num_shares(scenario))
    for section in sections(scenario):
        yield from section.contradictions()
    yield from of_kinds(scenario, lambda kind: kind.contradictions(scenario))
    if (steps := derive.steps_per_epoch(scenario)) > MAX_STEPS:
        yield f"train.steps={show(train.steps)}: {steps} steps per epoch; at most {MAX_STEPS} are possible"
    yield from checkpoint_checks.divisions(scenario)
    yield from derive.pace(scenario).contradictions(cluster.nodes, ranks, who)
    if train.device_copy is not None:
        yield from train.device_copy.refusals(loader)
    if train.parallelism.bubble and train.parallelism.microbatches > loader.batch_size:
        yield (
            f"train.parallelism.microbatches={train.parallelism.microbatches}: loader.batch_size={loader.batch_size} "
            "has fewer samples; use at most as many microbatches"
        )
    if isinstance(train.compute, ByBatchSize):
        yield from train.compute.refusals("train.compute", "loader.batch_size", loader.batch_size)
    if not dataset.external and dataset.sample_bytes.expected < (least := derive.least_sample_bytes(dataset.options)):
        size, why = format_bytes(dataset.sample_bytes.expected), "which hold a sample's id and digest"
        if least > derive.MIN_SAMPLE_BYTES:
            why = f"the least of dataset.format={dataset.format}"
        yield f"dataset.sample_bytes={size}: must be at least {least} B, {why}"
    if dataset.sizes == "per_sample":
        if not getattr(FORMATS[dataset.format], "sizes_vary", False):
            able = [name for name, form in FORMATS.usable().items() if getattr(form, "sizes_vary", False)]
            yield (
                f"dataset.sizes=per_sample: all samples of a {dataset.format} file have one size; use dataset.format="
                f"{' or '.join(able)}, or dataset.sizes=per_file"
            )
        elif dataset.samples_per_file > derive.MAX_VARYING:
            yield (
                f"dataset.sizes=per_sample: {dataset.samples_per_file} samples in a file; at most "
                f"{derive.MAX_VARYING} are possible; use more and smaller files"
            )
    if dataset.sample_bytes.expected > derive.MAX_SAMPLE_BYTES:
        size = format_bytes(dataset.sample_bytes.expected)
        yield f"dataset.sample_bytes={size}: must be at most {format_bytes(derive.MAX_SAMPLE_BYTES)}"
    if derive.dataset_bytes(scenario) > derive.MAX_BYTES:
        size = format_bytes(derive.dataset_bytes(scenario))
        yield f"{files} × dataset.sample_bytes: {size}; at most {format_bytes(derive.MAX_BYTES)} are possible"
    if cluster.has_reader_tier and loader.num_workers == 0:
        yield (
            "cluster.placement=dedicated_readers: there are no readers with loader.num_workers=0; raise it, or use "
            "cluster.placement=colocated"
        )
    if isinstance(loader.num_workers, Autoscaled):
        yield from _not_scaled(scenario, loader.num_workers)
    elif cluster.reader_pool is not None:
        yield (
            f"cluster.reader_pool: its nodes come for readers that come, and loader.num_workers={loader.num_workers} "
            "is always as many; give {min: ..., max: ...}"
        )
    if loader.worker == "thread" and cluster.placement == "spread" and cluster.nodes > 1:
        yield (
            f"loader.worker=thread: the readers of a rank share a process, and cluster.placement=spread has them on "
            f"{cluster.nodes} nodes; use cluster.placement=colocated"
        )
    if dataset.is_modelled and isinstance(loader.decode, Work) and loader.decode.rate is None:
        yield f"loader.decode.kind={loader.decode.kind}: dataset.path={dataset.path} has no bytes; {RATE_IS_MISSING}"
    if isinstance(loader.decode, Work) and (those := loader.decode.formats) and dataset.format not in those:
        yield (
            f"loader.decode.kind={loader.decode.kind}: decodes samples of dataset.format={' or '.join(those)}, and "
            f"dataset.format={dataset.format}"
        )
    if not derive.ideal_seconds(scenario) <= derive.MAX_SECONDS:
        long = f"{derive.total_steps(scenario)} steps take {derive.ideal_seconds(scenario):.3g} s"
        each, most = derive.compute_seconds(scenario), derive.MAX_SECONDS
        yield f"train.compute={each:.3g} s: {long}; at most {most:.3g} s are possible"
    else:
        yield from duration.refusals(scenario)
    if dataset.is_modelled and loader.payload == "real":
        yield f"loader.payload=real: dataset.path={dataset.path} has no bytes; use loader.payload=none"
    yield from evaluation.contradictions(scenario)
    yield from stage_checks.refusals(scenario)
    yield from apart.refusals(apart.folders_of(scenario) | apart.saving_folders(scenario), apart.as_written)
    yield from checkpoint_checks.refusals(scenario)
    yield from failure_checks.refusals(scenario)
    charges = scenario.charges
    if charges.cpu.step > charges.step:
        yield (
            f"costs.cpu.step={format_seconds(charges.cpu.step)}: is the part of costs.step="
            f"{format_seconds(charges.step)} that is work, so it is that at most"
        )
    for name, value in table(scenario).items():
        is_instant = name.endswith("read_demand") and derive.own_seconds(scenario) == 0
        if not is_instant and not math.isfinite(value):
            yield f"{name} is {value}: a size, a rate or a time is too large or too small for a number"


def _not_scaled(scenario: Scenario, scaling: Autoscaled) -> Iterator[str]:
    loader = scenario.loader
    setting = f"loader.num_workers={show({'min': scaling.min, 'max': scaling.max})}"
    if not getattr(LOADERS[loader.kind], "scales", False):
        able = [name for name, kind in LOADERS.usable().items() if getattr(kind, "scales", False)]
        yield f"{setting}: loader.kind={loader.kind} cannot change its workers; give a number, or use {listed(able)}"
    if loader.worker == "thread":
        yield f"not yet: {setting} with loader.worker=thread; use process, or give a number"
    if scenario.train.evaluate is not None:
        yield f"not yet: {setting} with train.evaluate, whose queue has the same readers; give a number"


def never(scenario: Scenario) -> Iterator[str]:
    """Yield a line for an interval that is longer than the run; with failures it is a warning before the run."""
    if scenario.checkpoint is not None and not derive.num_checkpoints(scenario):
        line = _no_checkpoint(scenario, derive.total_steps(scenario))
        yield f"{line}; save more often, or set checkpoint=none"


def unused_schemes(scenario: Scenario, base: str = "", out: str = "") -> Iterator[str]:
    """Yield a line for each key of ``storage`` that acts on addresses of a scheme which the run has nowhere.

    ``base`` is the folder of relative paths, and ``out`` the run directory.
    """
    storage, paths = scenario.storage, [out, *apart.folders_of(scenario).values()]
    used = {scheme_of(join(base, path)) for path in paths}
    of_use = {key for name in used if name in STORES for key in options_of(STORES[name]).model_fields}
    if "faults" in dict(storage.layers):
        of_use.add("max_attempts")
    for name, options in storage.schemes:
        for key, value in options:
            if key not in of_use and value != type(options).model_fields[key].default:
                yield f"storage.{key}={show(value)}: no effect, because no path of this run is at {name}://"


def idle(scenario: Scenario) -> list[str]:
    """Return a line for each key that does nothing in this run, which is too short or too simple for it."""
    train, loader, steps = scenario.train, scenario.loader, derive.total_steps(scenario)
    notes = [*evaluation.idle(scenario), *never(scenario)]
    if scenario.checkpoint is not None:
        notes += scenario.checkpoint.model.uneven(scenario.saving_topology)
    if zero := train.parallelism.zero_stage:
        setting = f"train.parallelism.zero_stage={zero}: changes nothing"
        if scenario.checkpoint is None or not scenario.checkpoint.writers.follows_zero:
            notes.append(f"{setting} without checkpoint.writers=parallel")
        elif scenario.saving_topology.data_parallel == 1 and (zero < 3 or train.parallelism.pipeline == 1):
            notes.append(f"{setting}, the model has one replica")
    if train.warmup_steps >= steps and derive.phases(scenario) is None:
        notes.append(f"train.warmup_steps={train.warmup_steps}: the run has {steps} steps, so nothing is measured")
    if train.cap is not None and train.cap > (most := derive.uncapped_steps(scenario)[1]):
        what = f"{train.cap} caps" if isinstance(train.steps, tuple) else "caps"
        notes.append(f"train.steps={show(train.steps)}: {what} nothing, an epoch has {most} steps")
    if shards.are_whole(scenario):
        pass  # a worker's last batch counts, not a rank's
    elif not loader.drop_last and derive.samples_per_epoch(scenario) == (
        derive.whole_steps_per_epoch(scenario) * derive.samples_per_step(scenario)
    ):
        notes.append("loader.drop_last=false: changes nothing, every rank's samples fill whole batches")
    if scenario.cluster.nic_bandwidth is not None and scenario.cluster.is_crossed and loader.payload == "none":
        notes.append("cluster.nic_bandwidth: no bytes cross it with loader.payload=none")
    if shards.is_by_file(scenario):
        dropped = derive.dropped_samples(scenario)
        notes += shards.notes(scenario, derive.num_files(scenario), derive.num_shares(scenario), dropped)
    notes += [*failure_checks.idle(scenario), *checkpoint_checks.idle(scenario)]
    for section in sections(scenario):
        notes += section.idle()
    pace, cluster = derive.pace(scenario), scenario.cluster
    hits = pace.hits_anybody(scenario.seed, cluster.node_of, cluster.world_size, steps)
    notes += pace.idle(steps, hits=hits) if derive.phases(scenario) is None else ()
    if train.parallelism.microbatches > 1 and train.parallelism.pipeline == 1:
        notes.append(f"train.parallelism.microbatches={train.parallelism.microbatches}: there is no pipeline")
    if train.accumulate > 1 and not train.sync.meets:
        notes.append(f"train.accumulate={train.accumulate}: ranks never wait for each other with train.sync=none")
    elif meeting_period(scenario) > (most := derive.steps_per_epoch(scenario)):
        keys = {"train.accumulate": train.accumulate, "train.sync.every": getattr(train.sync, "every", 1)}
        period = " × ".join(f"{key}={steps}" for key, steps in keys.items() if steps > 1)
        notes.append(f"{period}: an epoch has {most} steps, and ranks meet only at its end")
    notes += of_kinds(scenario, lambda kind: kind.idle(scenario))
    works = scenario.charges.cpu.is_work or isinstance(loader.decode, Work) or scenario.train.compute_cores
    works = works or loader.pin_memory
    if scenario.cluster.cores is not None and not works:
        notes.append(
            f"cluster.cores={show(scenario.cluster.cores)}: costs.cpu is empty, so nothing takes processor time; "
            "rayio calibrate learns it from a run"
        )
    if loader.scaling == "weak" and derive.is_replicated(scenario):
        notes.append(
            "loader.scaling=weak: changes nothing with loader.partition=replicated: every rank reads the whole dataset"
        )
    return notes


def _no_checkpoint(scenario: Scenario, steps: int) -> str:
    saved = scenario.checkpoint
    every = None if saved is None else saved.every
    if every is None or every.seconds is None:
        first = 0 if every is None else derive.schedule(scenario, every).until(0)
        return f"checkpoint.every: no checkpoint falls due, the first would be after {first} of {steps} steps"
    compute = format_seconds(derive.ideal_seconds(scenario))
    return (
        f"checkpoint.every={every.by_clock}: the compute of the whole run takes {compute}, so perhaps no checkpoint "
        "falls due"
    )


def table(scenario: Scenario) -> dict[str, float]:
    """Return the derived numbers by name, as ``rayio show`` prints them; bytes, seconds and bytes per second."""
    contents, shares = derive.checkpoint_contents(scenario), derive.checkpoint_shares(scenario)
    numbers = {
        "world_size": derive.world_size(scenario),
        "num_files": derive.num_files(scenario),
        "num_samples": derive.num_samples(scenario),
        "samples_per_epoch": derive.samples_per_epoch(scenario),
        "steps_per_epoch": derive.steps_per_epoch(scenario),
        "fewest_steps_per_epoch": derive.rank_steps(scenario)[0],
        "total_steps": derive.total_steps(scenario),
        "dropped_samples": derive.dropped_samples(scenario),
        "capped_samples": derive.capped_samples(scenario),
        "dataset_bytes": derive.dataset_bytes(scenario),
        "batch_bytes": derive.batch_bytes(scenario),
        "window_steps": derive.window_steps(scenario),
        "window_bytes": derive.window_bytes(scenario),
        "read_demand": derive.read_demand(scenario),
        "total_read_demand": derive.total_read_demand(scenario),
        "ideal_seconds": derive.ideal_seconds(scenario),
        "num_readers": derive.num_readers(scenario),
        "num_queues": derive.num_queues(scenario),
        "num_writers": derive.num_writers(scenario),
        "num_checkpoints": derive.num_checkpoints(scenario),
        "checkpoint_files": derive.checkpoint_files(scenario),
        "checkpoint_bytes": derive.checkpoint_bytes(scenario),
        **increment_bytes(scenario),
        "checkpoint_model_bytes": contents.get("model", NOTHING)[1],
        "checkpoint_optimizer_bytes": contents.get("optimizer", NOTHING)[1],
        "checkpoint_fewest_rank_bytes": min(shares, default=0),
        "checkpoint_most_rank_bytes": max(shares, default=0),
        "allreduce_seconds": allreduce_seconds(scenario),
        **evaluation.table(scenario),
        **dict(of_kinds(scenario, lambda kind: kind.table(scenario).items())),
    }
    return numbers if derive.phases(scenario) is None else numbers | dict.fromkeys(OF_TRAINING, 0)
