"""A run -> the scenario that predicts it: the run's own scenario with the measured costs of engine and stages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rayio.analyze import gate
from rayio.analyze.arrays import concatenated
from rayio.analyze.shape import RunShape
from rayio.errors import RunError
from rayio.model.planning import plan_of
from rayio.model.processors import hidden_share
from rayio.place import batch_parts
from rayio.predict import decoding, observe, saving, storage
from rayio.predict.bounds import evened, freer, lone, longest_way
from rayio.predict.costs import typical
from rayio.predict.decoding import Decoded
from rayio.predict.digits import with_known_digits
from rayio.predict.freed import BUSY, freed
from rayio.predict.learnable import Learnable, differ, fixed_work, learnable, speeds
from rayio.predict.processors import (
    ALIKE,
    UNKNOWN,
    Processors,
    SeenCpu,
    contention_of,
    cores_of_run,
    learn_cpu,
    put_of,
    receiving,
    scheduled,
)
from rayio.predict.ranges import STEP_ERROR, sure
from rayio.predict.replay import UNLIMITED
from rayio.predict.run_costs import apparent, beside_others, costs_of_run, step_seconds, warm_since
from rayio.predict.settle import Most
from rayio.predict.shown import Shown, reads_of
from rayio.records.calibrated import (
    Calibrated,
    DecodeFitted,
    LayerDelays,
    Note,
    OneRank,
    SimulatedBack,
    StorageFitted,
    TakeBounded,
    Usage,
)
from rayio.records.doubts import Doubt
from rayio.records.origin import WATCHED, kind_of
from rayio.reporter import SILENT, Reporter
from rayio.scenario import derive
from rayio.scenario.costs import CpuCosts, taken
from rayio.scenario.decode import Work
from rayio.scenario.model import Scenario, StorageParameters
from rayio.schema.distribution import Distribution
from rayio.storage.address import join, scheme_of
from rayio.storage.stores.opening import STORES, has_page_cache, upload_parts_at
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa

#: The first line of a file that a calibration wrote.
MARK = re.compile(rb"\A# \S+, calibrated from ")
#: The least time of a read without its parsing, and the pause between two runs (ns).
LEAST_NS, PAUSE_NS = 1000, 1_000_000_000
#: Batches of a run whose bytes per sample vary by this share (standard deviation) tell samples and bytes apart.
VARIES = 0.1


@dataclass(frozen=True)
class Learned:
    """A scenario learned from a run, with notes; the sentences are in ``rayio/session/calibration.py``."""

    scenario: Scenario
    records: tuple[Note, ...]
    #: Reasons not to predict with it; without sentences.
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """Directories of busy, lone and check runs, one for each calibrated run, and this machine's processors.

    Or the reason why all are missing.
    """

    full: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    machine: Processors = UNKNOWN
    missing: str = ""
    #: The share of this machine's processors that other programs used before busy runs, 0 to 1.
    foreign: float = 0.0


NO_EVIDENCE = Evidence()


def calibrate(
    path: str | Path, *others: str | Path, evidence: Evidence = NO_EVIDENCE, reporter: Reporter = SILENT
) -> Learned:
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
            first.spans, first.scenario, first.info, name=first.name, more=runs[1:],
            full=[learnable(each, reporter) for each in evidence.full],
            alone=[learnable(each, reporter) for each in evidence.alone],
            check=[learnable(each, reporter) for each in evidence.check], machine=evidence.machine,
            missing=evidence.missing, foreign=evidence.foreign, is_cached=first.is_cached,
        )  # fmt: skip
        return replace(learned, doubts=(*learned.doubts, *speeds(runs)))
    finally:
        reporter.done()


def learn(
    spans: pa.Table | Slices,
    scenario: Scenario,
    info: Mapping[str, Any],
    *,
    name: str = "run",
    more: Sequence[Learnable] = (),
    full: Sequence[Learnable] = (),
    alone: Sequence[Learnable] = (),
    check: Sequence[Learnable] = (),
    machine: Processors = UNKNOWN,
    missing: str = "",
    foreign: float = 0.0,
    is_cached: bool = False,
) -> Learned:
    """Learn from the spans of a run of ``scenario``; ``info`` is its run.json. ``more`` has other runs.

    ``full`` has runs of the same kind whose cores were full: they show CPU times as they are on busy processors.
    ``alone`` has runs of one rank and one worker: they show times without waits for other ranks and workers. To runs of
    ``check`` nothing is fitted: they show how far predictions are off. ``machine`` has the probed processors of the
    runs' machine; ``missing`` says why there are no such runs. Other programs used the share ``foreign`` of its
    processors before them.

    ``is_cached``: the run's bytes came from memory, and not from a device.

    Raises:
        RunError: there are too few steps, or none of a rank.
    """
    plan = plan_of(scenario, modelled=bool(info.get("modelled_storage")))
    run = Shown(spans, plan)
    warm = warm_since(run.steps, RunShape.of(scenario), name)
    read = run.reads
    notes: list[Note] = [Calibrated(scenario.name, name, str(info.get("engine")), str(info.get("rayio"))), Usage()]
    notes += [LayerDelays(layer.name) for layer in plan.layers if layer.causes][:1]
    read_of_more = [(other.scenario, reads_of(other.spans)) for other in more]
    storing: dict[str, Any] = {}
    loading = _payload(scenario, info)
    all_runs = (Learnable(name, scenario, info, run.slices), *more)
    seen, of_full, of_alone, cpu = _cpu_of(all_runs), _cpu_of(full), _cpu_of(alone), CpuCosts()
    slower, received, shown_alone = None, None, None
    if len(seen) == len(all_runs):
        # Busy runs show CPU times with full cores: with free ones, work takes so many times less.
        slower = contention_of(of_alone or seen, of_full) if of_full else None
        received = receiving([(seen, 1.0), (of_full, slower or 1.0), (of_alone, 1.0)])
        if (shown_alone := lone(alone, received)) is not None:
            received = shown_alone.rate
        cpu, of_cpu = learn_cpu(of_full or seen, scenario.dataset.format, received and received / (slower or 1.0))
        notes += of_cpu
    slower = slower if cpu.is_work else None
    if slower is not None:
        cpu, machine = cpu.times(1 / slower), replace(machine, contention=slower)
    if not plan.modelled:
        if not len(read.batch):
            raise RunError(f"{name} holds no spans of reads, so there is nothing to learn of its storage; run it again")
        others = [_waiting(reads, of, cpu) for of, reads in read_of_more]
        read_of_all = _one_after_another([_waiting(read, scenario, cpu), *others])
        fit = storage.fit(read_of_all, warm, scenario.loader.io_depth, _whole(info, "cpus") or 1)
        has_bytes = bool(read.nbytes.any())
        is_watched = kind_of(info.get("engine")) == WATCHED
        has_own_limit = is_watched or _is_service(scenario, info)
        is_saturated = has_bytes and (fit.shows_limit if has_own_limit else fit.is_saturated)
        fitted = fit.parameters if is_saturated else _carries(fit.parameters, run)
        guessed = "" if is_saturated else "; its bandwidth is a guess"
        if is_cached and cpu.is_work:  # no device was asked, so none had a limit; processors have
            fitted, guessed = fitted.model_copy(update={"bandwidth": UNLIMITED}), "; its bytes came from memory"
        if is_unbounded := has_own_limit and not is_saturated:
            fitted, guessed = fitted.model_copy(update={"bandwidth": UNLIMITED}), "; it showed no limit"
        if not has_bytes:  # a rate of bytes that nobody knows is none
            without = {"bandwidth": UNLIMITED, "connection_bandwidth": UNLIMITED}
            fitted, guessed = fitted.model_copy(update=without), "; its bytes are not known, so no bandwidth is"
        # The fitted model contains the effects of layers, such as refusals and caches.
        storing |= {key: value for name, _ in scenario.storage.layers for key, value in scenario.storage.defaults(name)}
        is_guess = not is_saturated and (fitted.bandwidth < UNLIMITED or (is_unbounded and not is_watched))
        storing["model"] = fitted.model_copy(
            update={
                "reached": storage.reached(read_of_all, warm) if is_guess else None,
                "provenance": "fitted",
                "source": f"fitted to the reads of {_whence(info, name)}{guessed}",
                "upload_parts": _upload_parts(scenario, info),
            }
        )
        decoded = [Decoded(each.scenario, reads_of(each.spans), 0, SeenCpu.of(each.info, "")) for each in full]
        decoded = decoded or [
            Decoded(scenario, read, warm, SeenCpu.of(info, name)),
            *(
                Decoded(of, reads, 0, SeenCpu.of(other.info, ""))
                for (of, reads), other in zip(read_of_more, more, strict=True)
            ),
        ]
        if (decode := decoding.learned(decoded)) is not None:
            loading["decode"] = decode.slowed(1 / slower) if slower and isinstance(decode, Work) else decode
            notes.append(_decoding_note(scenario))
        notes.append(StorageFitted(is_saturated, fit.is_free, is_cached, is_cached and cpu.is_work, is_unbounded))
    cores, neighbours = cores_of_run(scenario, info), scenario.cluster.most_ranks - 1
    is_busy = cpu.is_work and seen[0].utilisation(step_seconds(run, warm), cores, scenario) >= BUSY
    learned = costs_of_run(run, warm, storing.get("model") or plan.storage, notes, is_busy=is_busy)
    if is_busy:
        learned = learned.model_copy(update=seen[0].most(learned))
    shown_costs = learned  # as the run shows them: with what grows with bytes, and waits for other ranks
    whence = ", ".join(_whence(each.info, each.name) for each in all_runs)
    learned = learned.model_copy(
        update={
            "source": f"calibrated from {whence}",
            "cpu": cpu,
            "fixed_work": fixed_work(info),
            "sample_bytes": None if plan.modelled else _one_size([(scenario, read), *read_of_more]),
        }
    )
    if cpu.is_work:
        # What workers did beyond their reads is in costs.put; any more went on in the background, as the queue's does.
        put, rate = put_of(of_full or seen)
        put, rate = put / (slower or 1.0), rate and rate * (slower or 1.0)
        learned = freer(learned, shown_alone, seen[0].batch_bytes, neighbours)
        held = round(max(0.0, learned.put - taken(seen[0].batch_bytes, rate)), 9)
        receive = learned.receive if learned.neighbour else learned.receive - taken(seen[0].batch_bytes, received)
        receive = round(max(0.0, receive), 9)
        of_bytes = {"put": held, "put_bandwidth": rate, "receive": receive, "receive_bandwidth": received}
        learned = learned.model_copy(update=of_bytes)
        known = {
            "lease",
            "receive",
            *(shown_alone.costs if shown_alone else ()),
            *(("step",) if learned.neighbour else ()),
        }
        most = Most({name: getattr(learned, name) for name in known}, longest_way(run, full, rate), neighbours)
        queue, of_put = cpu.queue + max(0.0, put - held), min(put, held)
        cpu = cpu.model_copy(update={"queue": round(queue, 9), "put": round(of_put, 9) if of_full else None})
        cpu = scheduled(cpu, learned.step, machine)
        bounded = most.of(learned.model_copy(update={"cpu": cpu, "error": STEP_ERROR}))
        notes += [TakeBounded(bounded.take)] if bounded.take < learned.take else []
        learned = bounded
    changed: dict[str, Any] = {
        "storage": scenario.storage.model_copy(update=storing),
        "loader": scenario.loader.model_copy(update=loading),
        "costs": learned,
    }
    taught = scenario.model_copy(update=changed)
    if cpu.is_work:
        taught = taught.model_copy(update={"cluster": scenario.cluster.model_copy(update={"cores": cores})})
        requests = max(1.0, typical(read.requests[read.start >= warm]))
        seen_costs = beside_others(shown_costs, neighbours if learned.neighbour else 0)
        taught = freed(
            taught, apparent(run, seen_costs, warm), requests, cores, plan, notes, is_busy=is_busy, most=most
        )
        notes += [OneRank()] if shown_alone and not neighbours else []
        if shown_alone and learned.neighbour:
            times, apart = evened(all_runs, shown_alone)
            usual = {"neighbour": round(taught.charges.neighbour * times, 9), "neighbour_error": apart}
            taught = taught.model_copy(update={"costs": taught.charges.model_copy(update=usual)})
        of_memory = all_runs if is_cached else ()
        taught = sure(taught, of_memory, full, alone, check, cores, notes, missing, foreign)
    if not plan.modelled:
        shown = [run, *(Shown(other.spans, plan_of(other.scenario, modelled=False)) for other in more)]
        costs = saving.learned(taught.charges, shown, storing["model"], notes, is_varied=cpu.is_work)
        taught = taught.model_copy(update={"costs": costs})
    back = [gate.other_steps(note.simulated, note.measured) for note in notes if isinstance(note, SimulatedBack)]
    doubts = tuple(doubt for doubt in back if doubt is not None)
    return Learned(with_known_digits(taught, scenario), tuple(notes), doubts)


def _cpu_of(runs: Sequence[Learnable]) -> list[SeenCpu]:
    return [known for each in runs if (known := SeenCpu.of(each.info, each.name)) is not None]


def _waiting(read: observe.Reads, scenario: Scenario, cpu: CpuCosts) -> observe.Reads:
    """Return the reads of a run without the CPU time of parsing: the rest is storage's."""
    rank, _, step = batch_parts(read.batch)
    samples, depth = RunShape.of(scenario).samples(rank, step), scenario.loader.io_depth
    rate = 1e9 / cpu.bandwidth if cpu.bandwidth else 0.0
    shown = 1.0 if depth == 1 else np.array([1 - hidden_share(number, depth) for number in read.requests.tolist()])
    parsed = ((samples * cpu.sample * 1e9 + read.nbytes * rate) * shown).astype(np.int64)
    return replace(read, end=np.maximum(read.start + LEAST_NS, read.end - parsed))


def _one_after_another(runs: Sequence[observe.Reads]) -> observe.Reads:
    placed, free = [runs[0]], int(runs[0].end.max(initial=0))
    for read in runs[1:]:
        later = free + PAUSE_NS - int(read.start.min(initial=0))
        placed.append(replace(read, start=read.start + later, end=read.end + later, done=read.done + later))
        free += PAUSE_NS + int(read.end.max(initial=0)) - int(read.start.min(initial=0))
    return concatenated(placed)


def _one_size(runs: Sequence[tuple[Scenario, observe.Reads]]) -> float | None:
    """Return the mean bytes of samples that have the same size in all these runs; None where sizes tell bytes apart."""
    means = [derive.sample_bytes(scenario) for scenario, _ in runs]
    if max(means) >= ALIKE * min(means) or any(_varies(*run) for run in runs):
        return None
    return means[0] or None


def _varies(scenario: Scenario, read: observe.Reads) -> bool:
    rank, _, step = batch_parts(read.batch)
    each = read.nbytes / np.maximum(1, RunShape.of(scenario).samples(rank, step))
    return bool(len(each)) and float(each.std()) > VARIES * float(each.mean())


def _whence(info: Mapping[str, Any], name: str) -> str:
    day = str(info.get("started") or "").partition("T")[0]
    return f"{' '.join(name.split())} ({info.get('engine')} engine{f', {day}' if day else ''})"


def _is_service(scenario: Scenario, info: Mapping[str, Any]) -> bool:
    """Return True if another machine's service was read, whose limits this machine's processors do not tell."""
    address = join(str(info.get("root") or "."), scenario.dataset.path)
    return scheme_of(address) in STORES and not has_page_cache(address)


def _upload_parts(scenario: Scenario, info: Mapping[str, Any]) -> int:
    """Return how many parts of an upload are in flight where a run's checkpoints went."""
    saved = scenario.checkpoint
    return 1 if saved is None else upload_parts_at(join(str(info.get("root") or "."), saved.path))


def _carries(guessed: StorageParameters, run: Shown) -> StorageParameters:
    """Return the storage with a guessed bandwidth raised to that of the run's checkpoints."""
    taken, saved = run.checkpoints, run.plan.checkpointing
    if saved is None or saved.burst is not None or not len(taken) or not typical(taken):
        return guessed
    written = sum(saved.sizes) / run.plan.num_devices
    seen = written / (typical(taken) / 1e9)
    return guessed.model_copy(update={"bandwidth": max(guessed.bandwidth, seen)})


def _whole(info: Mapping[str, Any], key: str) -> int | None:
    value = info.get(key)
    return value if isinstance(value, int) and value > 0 else None


def _payload(scenario: Scenario, info: Mapping[str, Any]) -> dict[str, Any]:
    if info.get("payload") != "real":
        return {}
    bound = _whole(info, "max_bytes_in_flight")
    is_auto = scenario.loader.max_bytes_in_flight == "auto" and bound is not None
    return {"payload": "real"} | ({"max_bytes_in_flight": bound} if is_auto else {})


def _decoding_note(scenario: Scenario) -> Note:
    decode = scenario.loader.decode
    return DecodeFitted(stated=decode.expected) if isinstance(decode, Distribution) else DecodeFitted(decode.kind)
