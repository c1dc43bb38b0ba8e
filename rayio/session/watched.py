"""A training loop that ``rayio.watch`` recorded -> a run: spans, scenario and results, made when it is first opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rayio.analyze import gate
from rayio.analyze.arrays import arrays_of
from rayio.analyze.metrics import measure
from rayio.analyze.shape import RunShape
from rayio.errors import StorageError
from rayio.imports.loop_files import WatchedLoop, bytes_of, read_watched
from rayio.imports.loop_scenario import scenario_of, warm_compute
from rayio.imports.loops import Loads, RankLoop, record, with_meetings
from rayio.predict.storage import skewed
from rayio.records.origin import WATCHED, Origin
from rayio.records.run_result import RunResult, TraceCounts
from rayio.report.text.doubts import worded
from rayio.report.text.remarks import noted
from rayio.scenario import derive
from rayio.scenario.write import to_yaml
from rayio.trace.loop_files import ENGINE, FOLDER
from rayio.trace.recorder import Recorder
from rayio.trace.run_directory import RESULT, SPANS, RunDirectory
from rayio.version import __version__

#: The most broken-off ranks that get a note each.
MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Observed:
    """A loop that another program ran, ready to be written as a run."""

    name: str
    engine: str
    world_size: int
    hosts: int
    loops: tuple[RankLoop, ...]
    loads: tuple[Loads, ...]
    #: What the loader tells of itself (see ``rayio.engines.loaders.watching``).
    facts: Mapping[str, Any]
    source: str
    #: Entries of ``run.json``.
    info: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    #: Why nothing is known of reads, in words; empty where that is known.
    without_reads: str = ""
    leaves_out: tuple[str, ...] = field(default=())


def complete(directory: RunDirectory) -> None:
    """Write spans, scenario and results of a watched loop, unless they have all of its rows already.

    Raises:
        StorageError: a file of the loop is damaged, or the run directory cannot be written.
    """
    info = directory.info
    folder = directory.path / FOLDER
    if not folder.is_dir():
        if directory.holds(RESULT):
            return
        raise StorageError(f"{directory.address} has no folder {FOLDER}, so nothing of the loop is left: restore it")
    rows = bytes_of(folder)
    if info.get("completed_bytes") == rows and directory.holds(RESULT):
        return
    world_size, job = info.get("world_size"), info.get("job")
    if not isinstance(world_size, int) or world_size < 1 or not isinstance(job, str):
        raise StorageError(f"{directory.address}/run.json: world_size={world_size!r}: the file is damaged")
    seen = observed(read_watched(folder, world_size, job), directory.name)
    write(RunDirectory(directory.address), seen, completed_bytes=rows, job=job)


def observed(watched: WatchedLoop, name: str) -> Observed:
    """Return what ``rayio.watch`` recorded, ready to be written."""
    header, facts = watched.header, watched.facts
    has_reads = any(len(load) for load in watched.loads)
    notes = [*_broken_off(watched)]
    if header["has_accelerator"] and not header["is_synchronized"]:
        notes.append(
            "work on the accelerator may go on after a step ended, and then counts as waiting for data; "
            "give rayio.watch synchronize=torch.cuda.synchronize"
        )
    if has_reads and not watched.is_instrumented:
        notes.append(
            "read is the time in which a worker was not on a processor, decode the time in which it was; with "
            "rayio.reading() in the dataset, read is the time in there"
        )
    if len(watched.hosts) > 1:
        notes.append("times of several hosts are by their own clocks: waits between ranks are as exact as those")
    without = "" if has_reads else _why_no_reads(facts)
    return Observed(
        name=name,
        engine=ENGINE,
        world_size=watched.world_size,
        hosts=len(watched.hosts),
        loops=watched.loops,
        loads=watched.loads,
        facts=facts,
        source=f"recorded by rayio.watch, {header['started'].partition('T')[0]}",
        info={"host": header["host"], "cpus": header["cpus"], "started": header["started"]},
        notes=(*notes, *([f"no reads are known: {without}"] if without else [])),
        without_reads=without,
    )


def _broken_off(watched: WatchedLoop) -> list[str]:
    missing = watched.world_size - len(watched.loops)
    notes = [f"{missing} of {watched.world_size} ranks recorded nothing"] if missing else []
    broken = [loop for loop in watched.loops if loop.broke_off]
    for loop in broken[:MOST_NAMED]:
        steps = len(loop.step)
        notes.append(f"rank {loop.rank}: {loop.broke_off}; its {steps} step{'s' * (steps != 1)} count")
    if len(broken) > MOST_NAMED:
        notes.append(f"{len(broken) - MOST_NAMED} more ranks have no whole end")
    return notes


def _why_no_reads(facts: Mapping[str, Any]) -> str:
    if not facts.get("is_dataloader"):
        return f"the loader is no DataLoader of PyTorch ({facts.get('kind')}), whose workers could be timed"
    if facts.get("in_order") is False:
        return "with in_order=False nobody can tell which batch a worker loaded"
    return "no worker of the DataLoader recorded a batch"


def write(directory: RunDirectory, seen: Observed, **info: Any) -> None:
    """Write the run of a loop: ``run.json``, spans, ``scenario.yaml`` and ``result.json``.

    Raises:
        StorageError: no rank has a step, or the directory cannot be written.
    """
    loops, meets = with_meetings([loop for loop in seen.loops if len(loop.step)])
    if not loops:
        raise StorageError(f"{directory.address}: no rank has ended a step yet: there is nothing to tell")
    seconds = warm_compute(loops)
    compute = skewed(float(seconds.mean()), float(seconds.std())).model_dump(exclude_none=True)
    scenario, notes = scenario_of(
        seen.name, loops, seen.loads, seen.facts, world_size=seen.world_size, hosts=seen.hosts, compute=compute,
        meets=meets, source=seen.source,
    )  # fmt: skip
    recorder = Recorder()
    quiet = [loop for loop in seen.loops if not len(loop.step)]
    record([*loops, *quiet], seen.loads, recorder, derive.window_steps(scenario), scenario.loader.batch_size)
    entries = {
        "rayio": __version__,
        "engine": seen.engine,
        "world_size": seen.world_size,
        **seen.info,
        "modelled_storage": False,
        "payload": "none",
        "anchor": {"boot_id": "", "ns": 0},
    }
    if seen.without_reads:
        entries["without_reads"] = seen.without_reads
    recorded = recorder.recorded
    old = [*directory.store.sizes(SPANS)]
    if (table := recorder.drain()) is not None:
        directory.write_compacted(table, old)
    for name in old:
        directory.store.remove(f"{SPANS}/{name}")
    directory.write_scenario(to_yaml(scenario))
    directory.write_info(entries)
    directory.write_result(_result(directory, seen, scenario, notes, recorded))
    directory.write_info(entries | info)


def _result(directory: RunDirectory, seen: Observed, scenario: Any, notes: Sequence[str], recorded: int) -> RunResult:
    shape = RunShape.of(scenario)
    result = noted(measure(arrays_of(directory.slices()), shape))
    trace = scenario.trace
    if not any(load.nbytes.any() for load in seen.loads):
        result = replace(result, mib_per_second=None)
    result = replace(
        result,
        engine=seen.engine,
        scenario=scenario.name,
        origin=Origin(kind=WATCHED, storage="real", leaves_out=seen.leaves_out),
        trace=TraceCounts(level=trace.level, resolution=trace.resolution, recorded=recorded, stored=directory.stored),
        notes=(*seen.notes, *notes, *result.notes),
        dropped_samples_per_epoch=derive.dropped_samples(scenario),
        capped_samples_per_epoch=derive.capped_samples(scenario),
    )
    return replace(result, doubts=worded(gate.completed(result)))
