"""Runs that can be calibrated: opened, checked, and compared with each other."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayio.analyze import gate
from rayio.analyze.run_scenario import scenario_of, text_of
from rayio.errors import RunError, StorageError
from rayio.machine.speed import fixed_work_once
from rayio.predict.run_costs import refuse_few
from rayio.records.doubts import Doubt
from rayio.reporter import Reporter
from rayio.scenario.model import Scenario, placed
from rayio.storage.address import last_part
from rayio.trace.run_directory import RunDirectory
from rayio.trace.slices import Slices
from rayio.units import format_seconds

if TYPE_CHECKING:
    import pyarrow as pa

#: The most processors of a machine, and the largest sum over reads (bytes², at most).
MOST_CPUS, MOST = 100_000, 1e30
#: With this share of its bytes from memory, a run used no device.
CACHED = 0.95


@dataclass(frozen=True, slots=True)
class Learnable:
    """A run that can be learned from: its spans, its scenario, and its run.json."""

    name: str
    scenario: Scenario
    info: Mapping[str, Any]
    spans: pa.Table | Slices
    is_cached: bool = False


def differ(first: Learnable, other: Learnable) -> str | None:
    """Return the difference that keeps two runs from having the same costs, or None."""
    for key in ("dataset.format", "loader.kind", "loader.payload", "loader.io_depth"):
        section, _, name = key.partition(".")
        ours, theirs = (getattr(getattr(run.scenario, section), name) for run in (first, other))
        if ours != theirs:
            return f"{key} is {theirs}, not {ours}"
    for word in ("engine", "modelled_storage", "cpus"):
        if first.info.get(word) != other.info.get(word):
            return f"its {word} is {other.info.get(word)}, not {first.info.get(word)} (run.json)"
    if (doubt := gate.speed_of_runs([first.info, other.info])) is not None:
        times = [format_seconds(doubt.numbers[name]) for name in ("before", "after")]
        return f"fixed work took {times[0]} in one and {times[1]} in the other (run.json), so the machines differ"
    return None


def fixed_work(info: Mapping[str, Any]) -> float:
    """Return the time of fixed work during a run (s); 0 if unknown."""
    times = gate.fixed_work_of(info)
    return round(sum(times) / len(times), 6) if times else 0.0


def speeds(runs: Sequence[Learnable]) -> tuple[Doubt, ...]:
    """Return the doubt about the machine's speed: it changed during a run, or since then if it was this machine."""
    for run in runs:
        before, doubt = fixed_work(run.info), gate.speed_of_run(run.info)
        if doubt is None and before and run.info.get("host") == platform.node():
            doubt = gate.speed_of_calibration(before, fixed_work_once(gate.as_fast(before)))
        if doubt is not None:
            return (doubt,)
    return ()


def _unreadable(info: Mapping[str, Any]) -> str | None:
    """Return the first entry of run.json with an impossible value, or None."""
    cpus, seconds = info.get("cpus"), info.get("cpu_seconds")
    if cpus is not None and (isinstance(cpus, bool) or not isinstance(cpus, int) or not 1 <= cpus <= MOST_CPUS):
        return f"cpus={cpus!r}"
    if seconds is None:
        return None
    if not isinstance(seconds, Mapping):
        return f"cpu_seconds={seconds!r}"
    for part in ("roles", "reads"):
        for name, number in seconds[part].items() if isinstance(seconds.get(part), Mapping) else ():
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= MOST:
                return f"cpu_seconds.{part}.{name}={number!r}"
    return None


def learnable(path: str | Path, reporter: Reporter) -> Learnable:
    """Return a run that can be learned from.

    Raises:
        StorageError: no run is there, or a part of it is damaged.
        RunError: it was simulated or imported, broke off, or recorded no readers.
    """
    run = RunDirectory.open(path)
    info, result = run.info, run.result
    if info.get("engine") == "virtual":
        raise RunError(f"{path} was simulated: it knows no costs but those it was given; calibrate a run on Ray")
    if result is None:
        raise RunError(f"{path} has no result.json: the run broke off, or is still under way; calibrate a whole run")
    if result.exit_code not in (0, 3):
        raise RunError(f"{path} ended with exit code {result.exit_code}; calibrate a run that went well")
    if result.imported:
        raise RunError(
            f"{path} was imported: its results say nothing of workers and messages; calibrate a run of rayio"
        )
    if without := info.get("without_reads"):
        raise RunError(f"{path} cannot be calibrated, because no reads are known: {without}")
    if text_of(run) is None:
        raise StorageError(f"{path} has no scenario.yaml: it cannot be calibrated; run it again")
    scenario = placed(scenario_of(run), str(info.get("root") or "."))
    if scenario.cluster.reader_pool is not None:
        raise RunError(
            f"{path}: its nodes came and went (cluster.reader_pool), so nobody knows which cores did what; calibrate a "
            "run without"
        )
    if scenario.stages and not info.get("modelled_storage"):
        raise RunError(
            f"{path} cannot be calibrated: its reads waited for the files of its stages too; calibrate a run with "
            "stages=[], and simulate with the stages"
        )
    if scenario.trace.level in ("none", "step"):
        raise RunError(
            f"{path} was recorded with trace.level={scenario.trace.level}, which leaves out the readers; "
            "run it with trace.level=batch"
        )
    warmup = scenario.train.warmup_steps
    refuse_few(last_part(str(path)), (result.steps or 0) // max(result.world_size or 1, 1) - warmup, warmup)
    if (wrong := _unreadable(info)) is not None:
        raise StorageError(f"{path}/run.json: {wrong}: the file is damaged; run it again")
    reporter.live("calibrate: reading spans", 0.0)
    spans = run.slices()
    reporter.live(f"calibrate: learning from {len(spans):,} spans", 0.3)
    if run.lost_files:
        raise StorageError(f"{path}/spans/{run.lost_files[0]} cannot be read: the file is damaged; run it again")
    if not len(spans):
        raise RunError(f"{path} holds no spans, so there is nothing to learn from; run it again")
    cached = None if result.fetched is None else result.fetched.page_cache_share
    return Learnable(run.name, scenario, info, spans, cached is not None and cached >= CACHED)
