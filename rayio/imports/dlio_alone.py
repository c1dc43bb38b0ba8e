"""A result folder of DLIO's checkpoints without training: times of ranks if published, means of the summary else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayio.errors import DataError, ScenarioError
from rayio.imports.dlio_files import STATS, SUMMARY, Configured, configured, load, name_of, stats_file, whole
from rayio.imports.dlio_saved import (
    LOAD,
    SAVE,
    Checkpoint,
    checkpoint_bytes,
    is_of_checkpoints,
    read_checkpoints,
    transfers,
)
from rayio.imports.dlio_scenario import PREDICT, title
from rayio.imports.dlio_spans import record_checkpoint
from rayio.imports.dlio_summaries import count, wall_seconds
from rayio.imports.dlio_workload import workload_of
from rayio.records.run_result import Imported, ReducedImport
from rayio.records.transfers import Transfers
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.scenario.storage import UNKNOWN
from rayio.trace.recorder import Recorder
from rayio.units import parse_moment

_NO_TIMES = f"no times of single checkpoints, because there is no 0_{STATS}"
_NO_WRITERS = "times of a rank's checkpoint, not of its files"


@dataclass(frozen=True, slots=True)
class Alone:
    """The checkpoints of a folder without training; seconds are None if unknown."""

    folder: Path
    files: tuple[str, ...]
    summary: dict[str, Any]
    config: Configured
    world_size: int
    checkpoints: tuple[Checkpoint, ...]
    imported: Imported
    wall_seconds: float | None
    notes: tuple[str, ...]

    @property
    def has_all_ranks(self) -> bool:
        """True if the times of all ranks are known."""
        return bool(self.checkpoints) and len(self.checkpoints[0].start_ns) == self.world_size

    def moved(self, kind: str) -> Transfers | None:
        """Return the throughput of the checkpoints of a kind; None if their number or bytes are unknown."""
        mine, size = [each for each in self.checkpoints if each.kind == kind], self.imported.checkpoint_bytes
        if not mine or not size:
            return None
        seconds, nbytes = sum(each.seconds for each in mine), round(size * len(mine))
        return Transfers(
            checkpoints=len(mine),
            files=None,
            bytes=nbytes,
            seconds=seconds,
            mib_per_second=nbytes / seconds / 2**20 if seconds else None,
            slowest_rank=None,
            mean_rank=None,
            fastest_rank=None,
        )


def has_checkpoints_alone(folder: Path) -> bool:
    """Return True if a folder's summary has checkpoints, and no training.

    Raises:
        DataError: the summary is missing or damaged.
    """
    return is_of_checkpoints(load(folder, SUMMARY).get("metric"))


def read_alone(folder: Path, *, reduced: bool = False) -> Alone:
    """Return the checkpoints of a folder; with ``reduced`` those of its summary.

    Raises:
        DataError: a file is damaged, or contradicts another.
    """
    summary = load(folder, SUMMARY)
    world_size, metric = whole(summary, "num_accelerators"), summary["metric"]
    name = stats_file(folder)
    stats = load(folder, name) if not reduced and (folder / name).exists() else {}
    made, notes = read_checkpoints(folder, stats, world_size, metric)
    saved, restored = (transfers(metric, made, kind) for kind in (SAVE, LOAD))
    if saved is None and restored is None:
        raise DataError(f"{SUMMARY}: metric has no duration and no rate of a checkpoint: the run failed before its end")
    config = configured(folder)
    if made and len(made[0].start_ns) == world_size:
        files: tuple[str, ...] = ()
    else:
        files = (SUMMARY, *([name] if made else []), *([config.source] if config.source else []))
    lacks = _NO_TIMES if not made else f"{_NO_WRITERS}: their number and sizes are unknown"
    return Alone(
        folder=folder,
        files=files,
        summary=summary,
        config=config,
        world_size=world_size,
        checkpoints=made,
        imported=Imported(
            au=None,
            published_au=None,
            lost_points=None,
            epochs=(),
            reduced=ReducedImport(files=files, lacks=(lacks,)) if files else None,
            checkpoint_bytes=checkpoint_bytes(metric),
            saved=saved,
            restored=restored,
        ),
        wall_seconds=wall_seconds(summary, stats),
        notes=tuple(notes),
    )


def record(results: Alone, recorder: Recorder) -> None:
    """Record the spans of every rank: life, start-up, checkpoints written and read back."""
    first, last = results.checkpoints[0], results.checkpoints[-1]
    start = min(_moment(results.summary.get("start"), int(first.start_ns.min())), int(first.start_ns.min()))
    end = max(_moment(results.summary.get("end"), int(last.end_ns.max())), int(last.end_ns.max()))
    writers = [recorder.register("rank", str(rank), 0) for rank in range(results.world_size)]
    for rank, writer in enumerate(writers):
        recorder.add(writer, "startup", start, int(first.start_ns[rank]), 0, rank)
        recorder.add(writer, "life", start, end, 1, rank)
    for number, made in enumerate(results.checkpoints):
        record_checkpoint(made, number, recorder, writers)


def _moment(text: object, default: int) -> int:
    try:
        return parse_moment(str(text))
    except ValueError:
        return default


def scenario_of_alone(results: Alone) -> tuple[Scenario | None, list[str]]:
    """Return the scenario of the checkpoints (None if too little is known), and notes."""
    if not results.config.source or not results.config.is_whole:
        return None, ["no scenario.yaml: there is no config.yaml with the model and its parallelism"]
    name = name_of(title(results.config.workload, results.folder))
    reading = workload_of(results.config.workload, results.config.source, name)
    if reading.refused:
        return None, [f"no scenario.yaml: {reading.refused[0]}"]
    data = reading.nested()
    hosts, world = count(results.summary.get("num_hosts")), results.world_size
    nodes = hosts if hosts and world % hosts == 0 else 1
    data["cluster"] = {"nodes": nodes, "ranks_per_node": world // nodes}
    data["dataset"]["path"] = f"model://{name}"
    data["storage"] = {"model": UNKNOWN}
    data["source"] = f"imported from DLIO results of {results.summary.get('start', 'an unknown time')}"
    data.pop("expect", None)
    try:
        return build(data, "the scenario of these results"), [PREDICT]
    except ScenarioError as error:
        return None, [f"no scenario.yaml: {error}"]
