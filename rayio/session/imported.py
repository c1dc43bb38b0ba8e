"""Results of other benchmarks as run directories, so that every command that looks at a run can look at them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rayio import __version__
from rayio.analyze.dlio_losses import batch_size, explained, has_barrier
from rayio.analyze.dlio_results import Block, Results, number, read
from rayio.analyze.metrics import RunShape, measure
from rayio.errors import ScenarioError
from rayio.scenario import derive
from rayio.scenario.fields import show
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.session.result import Run
from rayio.trace.recorder import Recorder
from rayio.trace.store import RunDirectory

#: What a result of DLIO's says nothing about; measured from spans it would be a zero that means "not known".
NOT_RECORDED = ("mib_per_second",)

_PLACED = (
    "where a step lies within its block is in no record: each is placed after the slowest rank's step before it, "
    "the unrecorded time spread evenly between them"
)


def import_dlio_results(folder: str | Path, out: str | Path | None = None) -> Run:
    """Make a run directory of a result folder of DLIO or MLPerf Storage; ``out`` defaults to ``runs/<folder's name>``.

    ``result.json`` has DLIO's own AU from the records and, under ``imported``, where the points that it lacks of
    100 % went. The spans are those of the ranks; nothing is recorded of readers.

    Raises:
        DataError: a file is missing, damaged or of another run; nothing is written then.
        StorageError: the run directory exists or cannot be written.
    """
    folder = Path(folder)
    results = read(folder)
    batch = batch_size(results)
    scenario, notes = _scenario(results, batch)
    recorder = Recorder()
    record(results, recorder)
    directory = RunDirectory.create(out if out is not None else Path("runs") / _name(folder.absolute().name))
    try:
        _write(directory, results, recorder, batch, scenario, [*results.notes, *notes, _PLACED])
    except BaseException:
        shutil.rmtree(directory.path, ignore_errors=True)
        raise
    return Run(directory)


def _write(
    directory: RunDirectory,
    results: Results,
    recorder: Recorder,
    batch: int | None,
    scenario: Scenario | None,
    notes: list[str],
) -> None:
    steps = max(sum(block.steps for block in results.of(epoch)) for epoch in range(results.epochs))
    shape = RunShape(results.world_size, batch or 1, 1, results.epochs, steps)
    directory.write_info(
        {
            "rayio": __version__,
            "engine": "dlio",
            "imported": {
                "from": "dlio-results",
                "folder": str(results.folder.absolute()),
                "host": show(results.summary.get("hostname")),
                "num_hosts": number(results.summary.get("num_hosts")),
                "barrier_each_step": all(map(has_barrier, results.blocks)),
                "spans": _PLACED,
            },
            "started": str(results.summary["start"]),
            "anchor": {"boot_id": "", "ns": 0},
        }
    )
    if scenario is not None:
        directory.write_scenario(to_yaml(scenario))
    if (table := recorder.drain()) is not None:
        directory.write_spans(table, "part-00000")
    result: dict[str, Any] = {"version": 1, "engine": "dlio", "scenario": _title(results)}
    result |= measure(directory.spans(), shape)
    told = explained(results)
    aus = [row["au"] for row in told["epochs"]]
    result |= dict.fromkeys(NOT_RECORDED)
    result |= {"au_dlio": told["au"], "au_dlio_stdev": float(np.std(aus)), **_published_rates(results)}
    if batch is None:
        result["samples_per_second"] = None
        notes = [*notes, "the batch size is not in the results, so neither is samples_per_second"]
    if scenario is not None:
        result["dropped_samples_per_epoch"] = derive.dropped_samples(scenario)
        result["capped_samples_per_epoch"] = derive.capped_samples(scenario)
    result["notes"] = [*notes, *result["notes"]]
    directory.write_result(result | {"imported": told, "exit_code": 0, "error": None})


def _published_rates(results: Results) -> dict[str, float | None]:
    """Take the throughput as it was published: its formula is not the same in all versions of DLIO."""
    names = {
        "samples_per_second_dlio": "train_throughput_mean_samples_per_second",
        "samples_per_second_dlio_stdev": "train_throughput_stdev_samples_per_second",
    }
    return {name: number(results.published.get(key)) for name, key in names.items()}


def record(results: Results, recorder: Recorder) -> None:
    """Record the spans of every rank: its life, its start-up, the phases of each step, rank 0's checkpoints."""
    begun = min(block.start_ns for block in results.blocks)
    writers = [recorder.register("rank", str(rank), 0) for rank in range(results.world_size)]
    for rank, writer in enumerate(writers):
        recorder.add(writer, "startup", results.start_ns, begun, 0, rank)
    for block in results.blocks:
        _record_block(block, recorder, writers)
    for epoch, start, end in results.checkpoints:
        last = [block.first_step + block.steps - 1 for block in results.of(epoch) if block.end_ns <= start]
        recorder.add(writers[0], "checkpoint", start, end, 0, 0, epoch, max(last, default=0))
    for rank, writer in enumerate(writers):
        recorder.add(writer, "life", results.start_ns, results.end_ns, 1, rank)


def _record_block(block: Block, recorder: Recorder, writers: list[int]) -> None:
    """Lay out a block: with a barrier, every rank's step n starts when the slowest has ended step n - 1, and later."""
    load, proc, compute = (np.rint(column * 1e9).astype(np.int64) for column in (block.load, block.proc, block.compute))
    proc = np.maximum(proc, load)
    compute = np.minimum(compute, proc - load)
    whole = np.broadcast_to(proc.max(axis=0), proc.shape) if has_barrier(block) else proc
    spare = np.maximum((block.end_ns - block.start_ns) - whole.sum(axis=1, keepdims=True), 0)
    before = np.cumsum(whole, axis=1) - whole + spare * np.arange(block.steps) // block.steps
    starts = block.start_ns + before
    for rank, writer in enumerate(writers):
        rows = zip(*(column[rank].tolist() for column in (starts, load, proc, compute, whole)), strict=True)
        for step, (start, waited, worked, computed, until) in enumerate(rows, block.first_step):
            place = (0, rank, block.epoch, step)
            link = recorder.batch_id(rank, block.epoch, step)
            recorder.add(writer, "data_wait", start, start + waited, *place, link=link)
            recorder.add(writer, "compute", start + worked - computed, start + worked, *place)
            if until > worked:
                recorder.add(writer, "sync", start + worked, start + until, *place)


def _scenario(results: Results, batch: int | None) -> tuple[Scenario | None, list[str]]:
    """Make a scenario of what the results and the configuration beside them say; None where that is too little."""
    summary, config = results.summary, results.config
    hosts, world = summary.get("num_hosts"), results.world_size
    nodes = hosts if isinstance(hosts, int) and hosts > 0 and world % hosts == 0 else 1
    steps = sum(block.steps for block in results.of(0))
    compute = np.concatenate([block.compute.ravel() for block in results.blocks])
    mean, stdev = round(float(compute.mean()), 9), float(compute.std())
    reader = _section(config, "reader") or _section(config, "data_reader")
    workers = reader.get("read_threads")
    data: dict[str, Any] = {
        "name": _name(_title(results)),
        "source": f"imported from DLIO results of {summary['start']}",
        "cluster": {"nodes": nodes, "ranks_per_node": world // nodes},
        "dataset": {
            "path": f"model://{_name(_title(results))}",
            "num_files": summary.get("num_files_train"),
            "samples_per_file": summary.get("num_samples_per_file"),
            "sample_bytes": _sample_bytes(results),
        },
        "loader": {"batch_size": batch},
        "train": {
            "epochs": results.epochs,
            "steps": steps,
            "compute": mean if stdev < 1e-6 * mean else {"kind": "normal", "mean": mean, "stdev": stdev},
            "sync": "barrier" if all(map(has_barrier, results.blocks)) else "none",
        },
    }
    unknown = ["storage.model", "loader.shuffle"]
    if isinstance(workers, int) and workers > 0:
        prefetch = reader.get("prefetch_size", 2)
        data["loader"]["num_workers"] = workers
        data["loader"]["prefetch_factor"] = -(-prefetch // workers) if isinstance(prefetch, int) and prefetch > 0 else 2
    else:
        unknown += ["loader.num_workers", "loader.prefetch_factor"]
    try:
        scenario = build(data, "the scenario of these results")
        if derive.steps_per_epoch(scenario) != steps:
            raise ScenarioError(f"{steps} steps were made, {derive.steps_per_epoch(scenario)} follow from its keys")
    except ScenarioError as error:
        return None, [f"no scenario.yaml: {error}"]
    return scenario, [f"not in the results, so rayio's default in scenario.yaml: {', '.join(unknown)}"]


def _sample_bytes(results: Results) -> Any:
    """Take sizes from the configuration, else from the bytes per host in the summary (its GB are 2**30)."""
    dataset, summary = _section(results.config, "dataset"), results.summary
    mean = dataset.get("record_length_bytes", dataset.get("record_length"))
    stdev = dataset.get("record_length_bytes_stdev", dataset.get("record_length_stdev", 0))
    if isinstance(mean, (int, float)):
        return {"kind": "normal", "mean": mean, "stdev": stdev} if stdev else mean
    keys = ("num_files_train", "num_samples_per_file", "data_size_per_host_GB", "num_hosts")
    known = [value for value in (number(summary.get(key)) for key in keys) if value and value > 1e-9]
    if len(known) < len(keys):
        return None
    files, samples, size, hosts = known
    return round(size * 2**30 * hosts / (files * samples))


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}


def _title(results: Results) -> str:
    """Name the workload: as its configuration does, else as the folder."""
    model = results.config.get("model")
    name = model.get("name") if isinstance(model, Mapping) else model
    return name if isinstance(name, str) and name else results.folder.absolute().name


def _name(text: str) -> str:
    """Make a name that a folder and a scenario may have."""
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]", "-", text).strip("-.") or "imported"
