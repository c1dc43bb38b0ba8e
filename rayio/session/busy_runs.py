"""Short runs on the files of runs that are calibrated, which show what waits for others are and what they are not.

*Busy runs* keep every core at work: CPU times of full cores. *Lone runs* have one rank and one worker, which is nearly
always at work: CPU times next to free cores, and messages that wait for nobody. *Check runs* have one rank, no compute
and the workers of busy runs: no time is learned from them, so they show how far predictions are off.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rayio import storage
from rayio.errors import RayioError
from rayio.machine import probe, timers
from rayio.machine.cpu_time import Busy
from rayio.model.engine import engine_named
from rayio.predict.calibrate import Evidence, Learned, calibrate
from rayio.predict.learnable import Learnable, learnable
from rayio.predict.processors import CONTENTION, SLICE, Processors, SeenCpu, cores_of_run
from rayio.reporter import SILENT, Reporter
from rayio.scenario import derive
from rayio.scenario.decode import Work
from rayio.scenario.model import NO_TIME, Scenario
from rayio.scenario.train import Train
from rayio.session.calibration import Calibration
from rayio.session.resume import run
from rayio.storage.address import join
from rayio.trace.run_directory import RunDirectory

#: Seconds that a busy run trains for, and the fewest and most steps of its ranks.
SECONDS, FEWEST_STEPS, MOST_STEPS = 3.0, 60, 5_000
#: Seconds that a lone run trains for, the most steps of its rank, and the compute of a step relative to its worker's
#: time: a little more, so that batches are ready.
LONE_SECONDS, MOST_LONE_STEPS, SPARE = 2.0, 1_500, 1.25
#: Seconds in which other programs are observed.
IDLE_SECONDS = 0.5
#: Workers for each core: some wait for storage or messages while others work.
WORKERS_PER_CORE = 2
#: Workers of a check run, relative to those of a busy run, and its compute, to a step's share of full cores.
MORE_WORKERS, OF_CORES = 2, 0.5
#: CPU seconds of a batch where a run does not tell.
UNKNOWN_BATCH = 0.005


def calibrated(
    path: str | Path,
    *others: str | Path,
    busy: bool = True,
    address: str | None = None,
    reporter: Reporter = SILENT,
) -> Calibration:
    """Learn from runs as ``rayio.predict.calibrate`` does, with a probe and a busy run of each on this machine.

    A run on another machine or several, on another engine than Ray, or whose files are gone gets none. With ``busy``
    false there is neither. ``address`` is the Ray cluster of busy runs, see :func:`rayio.run`.

    Raises:
        RayioError: a run cannot be calibrated.
    """
    return Calibration.of(_learned(path, *others, busy=busy, address=address, reporter=reporter))


def _learned(path: str | Path, *others: str | Path, busy: bool, address: str | None, reporter: Reporter) -> Learned:
    if not busy:
        return calibrate(path, *others, reporter=reporter)
    runs = [learnable(each, reporter) for each in (path, *others)]
    if (reason := _refusal(runs)) is not None:
        return calibrate(path, *others, evidence=Evidence(missing=reason), reporter=reporter)
    reporter.live("calibrate: probing this machine's processors", 0.0)
    foreign = _used_by_others()
    machine = Processors(probe.time_slice() or SLICE, probe.contention() or CONTENTION)
    with TemporaryDirectory(prefix="rayio-busy-") as folder:
        full: list[str] = []
        alone: list[str] = []
        check: list[str] = []
        missing = ""
        try:
            with engine_named("ray").lasting():
                for number, each in enumerate(runs):
                    reporter.live(f"calibrate: busy run {number + 1} of {len(runs)}", (number + 1) / (len(runs) + 2))
                    full.append(f"{folder}/{number}")
                    _run(busy_scenario(each.scenario, each.info), each, full[-1], address)
                    if (lone := lone_scenario(each.scenario, each.info)) is not None:
                        alone.append(f"{folder}/{number}-alone")
                        _run(lone, each, alone[-1], address)
                    info = RunDirectory.open(full[-1]).info  # CPU times of full cores
                    for other, of_check in enumerate(check_scenarios(each.scenario, info) if lone else ()):
                        check.append(f"{folder}/{number}-check-{other}")
                        _run(of_check, each, check[-1], address)
        except RayioError as error:
            full, alone, check, missing = [], [], [], f"the busy run failed: {error}"
        evidence = Evidence(tuple(full), tuple(alone), tuple(check), machine, missing, foreign)
        return calibrate(path, *others, evidence=evidence, reporter=reporter)


def _used_by_others() -> float:
    """Return the share of this machine's processors in use while this process sleeps, 0 to 1."""
    busy = Busy()
    timers.sleep(IDLE_SECONDS)
    return busy.share or 0.0


def _refusal(runs: Sequence[Learnable]) -> str | None:
    """Return the reason why no busy run can be made for some runs, or None."""
    for each in runs:
        scenario, info = each.scenario, each.info
        if info.get("engine") != "ray":
            return f"{each.name} did not run on Ray"
        if info.get("host") != platform.node():
            return f"{each.name} ran on {info.get('host')}, not on this machine"
        if isinstance(nodes := info.get("nodes"), list) and len(nodes) > 1:
            return f"{each.name} ran on {len(nodes)} Ray nodes"
        if info.get("modelled_storage"):
            return f"{each.name} read modelled storage"
        if not storage.open(join(str(info.get("root") or "."), scenario.dataset.path), scenario.stores).exists:
            return f"the files of {each.name} are gone ({scenario.dataset.path})"
    return None


def _run(scenario: Scenario, of: Learnable, out: str, address: str | None) -> None:
    run(scenario, engine="ray", address=address, root=str(of.info.get("root") or "."), out=out)


def busy_scenario(scenario: Scenario, info: Mapping[str, Any]) -> Scenario:
    """Return a short scenario on the same files that keeps every core busy: no compute, and enough workers."""
    workers = scenario.loader.max_workers
    if workers:
        workers = max(workers, -(-WORKERS_PER_CORE * cores_of_run(scenario, info) // scenario.cluster.most_ranks))
    step = _full_step(scenario, info)
    return _short(scenario, round(min(MOST_STEPS, max(FEWEST_STEPS, SECONDS / step))), workers, 0.0)


def _full_step(scenario: Scenario, info: Mapping[str, Any]) -> float:
    """Return the seconds of a step in which full cores only work for batches of all ranks."""
    cpu = SeenCpu.of(info, "run")
    each = (sum(cpu.roles.values()) + cpu.nodes) / cpu.batches if cpu is not None else UNKNOWN_BATCH
    return max(each, 1e-6) * scenario.cluster.most_ranks / cores_of_run(scenario, info)


def lone_scenario(scenario: Scenario, info: Mapping[str, Any]) -> Scenario | None:
    """Return a short scenario of one rank and one worker on the same files; None where a rank has no workers.

    The worker is nearly always at work, and its rank finds each batch ready. A scenario of several nodes has none.
    """
    cpu = SeenCpu.of(info, "run")
    if not scenario.loader.max_workers or scenario.cluster.all_nodes > 1 or cpu is None:
        return None
    compute = SPARE * cpu.of_readers / cpu.batches
    steps = round(min(MOST_LONE_STEPS, max(FEWEST_STEPS, LONE_SECONDS / max(compute, 1e-6))))
    cluster = scenario.cluster.model_copy(update={"ranks_per_node": 1})
    return _short(scenario.model_copy(update={"cluster": cluster}), steps, 1, compute)


def check_scenarios(scenario: Scenario, info: Mapping[str, Any]) -> list[Scenario]:
    """Return busy scenarios on the same files with other ranks, workers and compute: those that predictions vary.

    One has twice the workers, and compute for half of the time that its cores need. Where a node has several ranks,
    another has one rank. ``info`` is the run.json of the busy run.
    """
    busy = busy_scenario(scenario, info)
    steps, workers = derive.total_steps(busy), MORE_WORKERS * busy.loader.max_workers
    checks = [_short(scenario, steps, workers, OF_CORES * _full_step(scenario, info))]
    if scenario.cluster.most_ranks > 1:
        cluster = scenario.cluster.model_copy(update={"ranks_per_node": 1})
        checks.append(busy_scenario(scenario.model_copy(update={"cluster": cluster}), info))
    return checks


def _short(scenario: Scenario, steps: int, workers: int, compute: float) -> Scenario:
    """Return a scenario of some steps and workers on the same files; its compute is in seconds."""
    loader = scenario.loader
    decode = loader.decode if isinstance(loader.decode, Work) else NO_TIME  # a sleep keeps no core busy
    uncapped = scenario.model_copy(update={"train": scenario.train.model_copy(update={"steps": None})})
    per_epoch = derive.steps_per_epoch(uncapped)
    train = Train.model_validate(
        {"epochs": max(1, -(-steps // per_epoch)), "steps": min(steps, per_epoch), "compute": compute}
    )
    changed: dict[str, Any] = {
        "train": train.model_copy(update={"sync": scenario.train.sync, "warmup_steps": scenario.train.warmup_steps}),
        "loader": loader.model_copy(update={"num_workers": workers, "max_bytes_in_flight": "auto", "decode": decode}),
        "storage": scenario.storage.model_copy(update={"page_cache": "use"}),
        "checkpoint": None,
        "expect": {},
        "trace": scenario.trace.model_copy(update={"level": "batch"}),
    }
    return scenario.model_copy(update=changed)
