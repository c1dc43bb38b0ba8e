"""A run -> the scenario that predicts it: the run's own scenario with the measured costs of engine and stages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from rayio.analyze.arrays import concatenated
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import Steps
from rayio.engines.virtual import simulation
from rayio.errors import RunError, StorageError
from rayio.files import replacing
from rayio.model.plan import Plan
from rayio.model.planning import plan_of, storage_of
from rayio.place import batch_parts
from rayio.predict import observe, saving, storage
from rayio.predict.costs import FEW, costs, typical, waited
from rayio.predict.learnable import Learnable, differ, fixed_work, learnable, speeds
from rayio.predict.processors import SeenCpu, cores_of_run, learn_cpu, scheduled
from rayio.predict.replay import UNLIMITED, cut
from rayio.predict.settle import NEAR, Apparent, Free, beside_batches, settle
from rayio.predict.shown import Shown, reads_of
from rayio.records.doubts import Doubt
from rayio.reporter import SILENT, Reporter
from rayio.scenario.costs import CpuCosts, taken
from rayio.scenario.decode import Work
from rayio.scenario.model import Costs, Scenario, StorageParameters
from rayio.scenario.write import to_yaml
from rayio.schema.distribution import Constant, Distribution, LogNormal
from rayio.storage.stores.refusals import unwritten
from rayio.trace.slices import Slices
from rayio.units import format_seconds

if TYPE_CHECKING:
    import pyarrow as pa

#: Fewer steps than this, per rank and after the warm-up, are too few to learn from.
MIN_STEPS = 10
#: The factor on work while all cores are busy, in addition to that in the calibrated runs; the bounds of processor
#: times as factors; the error of a step's other time as a share. All are from predicted runs (`benchmarks/predict.py`).
CONTENTION = 1.2
CPU_BETWEEN, STEP_ERROR = (0.9, 1.5), 0.05
#: The first line of a file that a calibration wrote.
MARK = re.compile(rb"\A# \S+, calibrated from ")
#: If a smaller part of the cores was at work, some of that work may not have delayed batches.
BUSY = 0.5
#: The least time of a read without its parsing, and the pause between two runs (ns).
LEAST_NS, PAUSE_NS = 1000, 1_000_000_000
#: Measured decoding replaces the scenario's where it differs by more than this.
DECODE_DIFFERS = 0.05


@dataclass(frozen=True)
class Calibration:
    """A scenario learned from a run, with notes, a sentence each."""

    scenario: Scenario
    notes: tuple[str, ...]
    #: Reasons not to predict with it; without sentences.
    doubts: tuple[Doubt, ...] = ()

    def to_yaml(self) -> str:
        """Return the text of a scenario file, with the notes as comments at its top."""
        return "".join(f"# {' '.join(note.split())}\n" for note in self.notes) + to_yaml(self.scenario)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all; one that is there is replaced.

        Raises:
            StorageError: it cannot be written there.
        """
        if path.is_dir():
            raise StorageError(f"cannot write {path}: it is a folder; give --out a file name")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, path.with_name(f".{path.name}.{uuid4().hex[:8]}.partial")) as partial:
                partial.write_text(self.to_yaml(), encoding="utf-8")
        except OSError as error:
            raise unwritten(error, path, "--out") from None


def calibrate(path: str | Path, *others: str | Path, reporter: Reporter = SILENT) -> Calibration:
    """Learn from a run on the Ray or the local engine the costs of its engine and its stages.

    ``others`` are runs of the same kind with samples or batches of other sizes: they separate costs per byte, of
    storage and of processors. The scenario is that of the first run.

    Raises:
        StorageError: no run is there, or a part of it is damaged.
        RunError: a run was simulated, broke off, was too short, or differs too much from the first.
    """
    paths = [path, *others]
    places = [Path(each).absolute() for each in paths]
    if twice := [str(each) for each, place in zip(paths, places, strict=True) if places.count(place) > 1]:
        raise RunError(f"{twice[0]} is given twice; a run teaches nothing that it has not taught")
    try:
        runs = [learnable(each, reporter) for each in paths]
        first = runs[0]
        for other in runs[1:]:
            if (apart := differ(first, other)) is not None:
                raise RunError(f"{other.name} cannot be calibrated together with {first.name}: {apart}")
        learned = learn(
            first.spans, first.scenario, first.info, name=first.name, more=runs[1:], is_cached=first.is_cached
        )
        return replace(learned, doubts=speeds(runs))
    finally:
        reporter.done()


def learn(
    spans: pa.Table | Slices,
    scenario: Scenario,
    info: Mapping[str, Any],
    *,
    name: str = "run",
    more: Sequence[Learnable] = (),
    is_cached: bool = False,
) -> Calibration:
    """Learn from the spans of a run of ``scenario``; ``info`` is its run.json. ``more`` has other runs.

    ``is_cached``: the run's bytes came from memory, and not from a device.

    Raises:
        RunError: there are too few steps, or none of a rank.
    """
    plan = plan_of(scenario, modelled=bool(info.get("modelled_storage")))
    run = Shown(spans, plan)
    warm = _warm(run.steps, RunShape.of(scenario), name)
    read = run.reads
    notes = [
        f"{scenario.name}, calibrated from {name} ({info.get('engine')} engine, rayio {info.get('rayio')})",
        "rayio simulate takes this file; change loader.num_workers, loader.prefetch_factor and the like",
    ]
    if delaying := [layer.name for layer in plan.layers if layer.causes]:
        notes.append(
            f"storage.{delaying[0]}: its delays are in the fitted storage; calibrate a run without it to predict others"
        )
    storing: dict[str, Any] = {}
    loading = _payload(scenario, info)
    all_runs = (Learnable(name, scenario, info, run.slices), *more)
    seen, cpu = [known for each in all_runs if (known := SeenCpu.of(each.info, each.name)) is not None], CpuCosts()
    if len(seen) == len(all_runs):
        cpu, of_cpu = learn_cpu(seen, scenario.dataset.format)
        notes += of_cpu
    if not plan.modelled:
        if not len(read.batch):
            raise RunError(f"{name} holds no spans of reads, so there is nothing to learn of its storage; run it again")
        others = [_waiting(reads_of(other.spans), other.scenario, cpu) for other in more]
        read_of_all = _one_after_another([_waiting(read, scenario, cpu), *others])
        fit = storage.fit(read_of_all, warm, scenario.loader.io_depth, _whole(info, "cpus") or 1)
        fitted = fit.parameters if fit.is_saturated else _carries(fit.parameters, run)
        guessed = "" if fit.is_saturated else "; its bandwidth is a guess"
        of_storage = _fit_in_words(fit)
        if is_cached and cpu.is_work:  # no device was asked, so none had a limit; processors have
            fitted, guessed = fitted.model_copy(update={"bandwidth": UNLIMITED}), "; its bytes came from memory"
            of_storage = "its bytes came from memory, so no limit of a device is in it: processors are the limit"
        # The fitted model contains the effects of layers, such as refusals and caches.
        storing |= {key: value for name, _ in scenario.storage.layers for key, value in scenario.storage.defaults(name)}
        storing["model"] = fitted.model_copy(
            update={"provenance": "fitted", "source": f"fitted to the reads of {_whence(info, name)}{guessed}"}
        )
        loading |= _decode(read, warm, scenario, notes)
        notes.append(f"storage.model: fitted to the reads of the run; {of_storage}")
    learned = _costs(run, warm, storing.get("model") or plan.storage, notes)
    whence = ", ".join(_whence(each.info, each.name) for each in all_runs)
    learned = learned.model_copy(
        update={"source": f"calibrated from {whence}", "cpu": cpu, "fixed_work": fixed_work(info)}
    )
    if cpu.is_work:
        # What workers did beyond their reads is in costs.put; any more went on in the background, as the queue's does.
        beyond = max(0.0, seen[0].put - learned.put - taken(seen[0].batch_bytes, learned.put_bandwidth))
        cpu = cpu.model_copy(update={"queue": round(cpu.queue + beyond, 9)})
        cpu = scheduled(cpu, learned.step).model_copy(update={"contention": CONTENTION})
        least, most = CPU_BETWEEN
        sure = cpu.model_copy(update={"at_least": least, "at_most": most})
        learned = learned.model_copy(update={"cpu": sure, "error": STEP_ERROR})
    changed: dict[str, Any] = {
        "storage": scenario.storage.model_copy(update=storing),
        "loader": scenario.loader.model_copy(update=loading),
        "costs": learned,
    }
    taught = scenario.model_copy(update=changed)
    if cpu.is_work:
        cores = cores_of_run(scenario, info)
        taught = taught.model_copy(update={"cluster": scenario.cluster.model_copy(update={"cores": cores})})
        requests = max(1.0, typical(read.requests[read.start >= warm]))
        taught = _settled(taught, _apparent(run, learned, warm), requests, cores, plan, notes)
    if not plan.modelled:
        shown = [run, *(Shown(other.spans, plan_of(other.scenario, modelled=False)) for other in more)]
        costs = saving.learned(taught.charges, shown, storing["model"], notes, is_varied=cpu.is_work)
        taught = taught.model_copy(update={"costs": costs})
    return Calibration(taught, tuple(notes))


def _settled(scenario: Scenario, seen: Apparent, requests: float, cores: int, plan: Plan, notes: list[str]) -> Scenario:
    """Return the scenario with costs freed of waits for ``cores``; ``requests`` is the mean number of a read."""
    shape, model = RunShape.of(scenario), scenario.storage.model
    latency = model.first_byte if isinstance(model, StorageParameters) else None

    def changed(free: Free) -> Scenario:
        updated: dict[str, Any] = {"costs": free.costs}
        if isinstance(model, StorageParameters) and latency is not None and free.storage != start.storage:
            first_byte = _of_mean(latency, (free.storage or 0.0) / requests)
            updated["storage"] = scenario.storage.model_copy(
                update={"model": model.model_copy(update={"first_byte": first_byte})}
            )
        return scenario.model_copy(update=updated)

    def live(free: Free) -> Apparent:
        wanted = changed(free)
        run = Shown(_simulated(wanted, plan.max_bytes_in_flight), plan)
        warm = _warm(run.steps, shape, "the simulated run")
        shown_costs = _costs(run, warm, storage_of(wanted), [])
        # Spans of asynchronous checkpoints do not contain their extra cost.
        if scenario.checkpoint is not None and scenario.checkpoint.asynchronous:
            shown_costs = shown_costs.model_copy(update={"checkpoint": seen.costs.checkpoint})
        return _apparent(run, shown_costs, warm)

    start = Free(scenario.charges, None if latency is None else latency.expected * requests)
    settled, shown = settle(start, seen, live)
    size = scenario.loader.batch_size
    of_batch = settled.costs.cpu_of_batch(size, size * scenario.dataset.sample_bytes.expected)
    per_second = shape.world_size / scenario.cluster.all_nodes / seen.step
    if of_batch * per_second < BUSY * cores:
        settled, shown = beside_batches(settled, shown, seen, live, per_second)
    if shown.step > (1 + NEAR) * seen.step:  # its cores were always busy: its CPU times contain the contention
        cpu = start.costs.cpu.times(max(1 / start.costs.cpu.contention, seen.step / shown.step))
        settled, shown = settle(Free(start.costs.model_copy(update={"cpu": cpu}), start.storage), seen, live)
    off = 100 * (shown.step / seen.step - 1)
    notes.append(
        f"costs.cpu: simulated back on {cores} cores, a step of the run takes "
        f"{format_seconds(shown.step)}; it took {format_seconds(seen.step)} ({off:+.1f} %)"
    )
    return changed(settled)


def _simulated(scenario: Scenario, bytes_in_flight: int | None) -> pa.Table:
    if shorter := cut(scenario):
        scenario = scenario.model_copy(update={"train": scenario.train.model_copy(update=shorter)})
    return simulation.spans_of(plan_of(scenario, True, bytes_in_flight))


def _of_mean(times: Distribution, mean: float) -> Distribution:
    """Return times of the same relative spread around another mean."""
    if isinstance(times, LogNormal) and times.expected > 0 and mean > 0:
        return times.model_copy(update={"median": times.median * mean / times.expected})
    return Constant(value=round(mean, 9))


def _apparent(run: Shown, shown: Costs, warm: int) -> Apparent:
    steps, read = run.steps, run.reads
    chosen = read.start >= warm
    kept = steps.start >= warm
    whole = steps.end[kept].max() - steps.start[kept].min()
    ranks = int(steps.life.max(initial=0)) + 1
    return Apparent(
        shown,
        typical((read.end - read.start)[chosen]) / 1e9,
        float(whole) / 1e9 / max(1, int(kept.sum()) // ranks),
    )


def _waiting(read: observe.Reads, scenario: Scenario, cpu: CpuCosts) -> observe.Reads:
    """Return the reads of a run without the CPU time of parsing: the rest is storage's."""
    rank, _, step = batch_parts(read.batch)
    samples = RunShape.of(scenario).samples(rank, step)
    rate = 1e9 / cpu.bandwidth if cpu.bandwidth else 0.0
    parsed = (samples * cpu.sample * 1e9 + read.nbytes * rate).astype(np.int64)
    return replace(read, end=np.maximum(read.start + LEAST_NS, read.end - parsed))


def _one_after_another(runs: Sequence[observe.Reads]) -> observe.Reads:
    placed, free = [runs[0]], int(runs[0].end.max(initial=0))
    for read in runs[1:]:
        later = free + PAUSE_NS - int(read.start.min(initial=0))
        placed.append(replace(read, start=read.start + later, end=read.end + later, done=read.done + later))
        free += PAUSE_NS + int(read.end.max(initial=0)) - int(read.start.min(initial=0))
    return concatenated(placed)


def _whence(info: Mapping[str, Any], name: str) -> str:
    day = str(info.get("started") or "").partition("T")[0]
    return f"{' '.join(name.split())} ({info.get('engine')} engine{f', {day}' if day else ''})"


def _carries(guessed: StorageParameters, run: Shown) -> StorageParameters:
    """Return the storage with a guessed bandwidth raised to that of the run's checkpoints."""
    taken, saved = run.checkpoints, run.plan.checkpointing
    if saved is None or not len(taken) or not typical(taken):
        return guessed
    written = sum(saved.sizes) / run.plan.num_devices
    seen = written / (typical(taken) / 1e9)
    return guessed.model_copy(update={"bandwidth": max(guessed.bandwidth, seen)})


def _fit_in_words(fit: storage.Fit) -> str:
    if not fit.is_saturated:
        return "the storage was never saturated, so storage.model.bandwidth is a guess"
    alone = "" if fit.is_free else "; what one connection gives alone was not seen and is a guess"
    return f"they had the storage saturated, so what all share is known{alone}"


def _whole(info: Mapping[str, Any], key: str) -> int | None:
    value = info.get(key)
    return value if isinstance(value, int) and value > 0 else None


def _payload(scenario: Scenario, info: Mapping[str, Any]) -> dict[str, Any]:
    if info.get("payload") != "real":
        return {}
    bound = _whole(info, "max_bytes_in_flight")
    is_auto = scenario.loader.max_bytes_in_flight == "auto" and bound is not None
    return {"payload": "real"} | ({"max_bytes_in_flight": bound} if is_auto else {})


def _costs(run: Shown, warm: int, model: StorageParameters, notes: list[str]) -> Costs:
    """Return the costs, and add to ``notes`` those that the run could not show."""
    plan, seen = run.plan, run.batches
    loader, has_queue = plan.loader, plan.loader.num_workers > 0
    backlog = loader.assignment != "dynamic" and loader.prefetch_factor > 1
    learned = costs(
        seen, run.steps, warm, payload=plan.payload, backlog=backlog,
        sync_seconds=plan.sync_seconds if plan.has_barrier else None,
    )  # fmt: skip
    if has_queue and (waits := int(waited(seen).sum())) < FEW:
        notes.append(
            f"costs.lease and .take: ranks waited for {waits} batches only; a run with fewer workers tells more"
        )
    if has_queue and not backlog:
        notes.append("costs.put: part of costs.take, for no lease ever waits at a reader in this run")
    if plan.has_barrier and not learned.barrier:
        notes.append("costs.barrier: hidden behind the compute of this run, so it is left at 0")
    if run.is_bound:
        notes.append("costs.lease: the bound on bytes in flight closed the window at times, which may be part of it")
    return learned.model_copy(update={"checkpoint": saving.beyond_model(run, model)})


def _warm(steps: Steps, shape: RunShape, name: str) -> int:
    """Return when every rank was warm (ns); too few steps after that raise RunError."""
    number = np.bincount(steps.life, minlength=shape.world_size)
    fewest = int(number.min(initial=steps.number)) - shape.warmup_steps
    if fewest < MIN_STEPS or len(number) > shape.world_size:
        raise RunError(
            f"{name} has {max(0, fewest)} steps per rank after its {shape.warmup_steps} warm-up steps; "
            f"calibrating needs at least {MIN_STEPS}: run more steps or epochs"
        )
    first = np.cumsum(number) - number
    warm = steps.end[first + shape.warmup_steps - 1] if shape.warmup_steps else steps.start[first]
    return int(warm.max())


def _decode(read: observe.Reads, warm: int, scenario: Scenario, notes: list[str]) -> dict[str, Any]:
    """Return a change of ``loader.decode`` where it was work, or where it took another time than in the scenario."""
    decode = scenario.loader.decode
    rank, epoch, step = batch_parts(read.batch)
    chosen = (read.decode >= 0) & (read.start >= warm) & (epoch < scenario.train.epochs)
    size = RunShape.of(scenario).samples(rank[chosen], step[chosen])
    if not len(size):
        return {}
    taken = read.decode[chosen] / 1e9 / size
    mean = float(read.decode[chosen].sum()) / 1e9 / int(size.sum())
    deviation = float(((taken - mean) * np.sqrt(size)).std())
    if isinstance(decode, Work):
        notes.append(f"loader.decode: measured in place of {decode.kind}")
    elif abs(mean - decode.expected) <= DECODE_DIFFERS * decode.expected:
        return {}
    else:
        notes.append(f"loader.decode: measured; the scenario said {format_seconds(decode.expected)} a sample")
    return {"decode": storage.skewed(mean, deviation)}
