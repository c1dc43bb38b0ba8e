"""Import of other benchmarks' results as run directories, for all commands that read runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rayio.analyze.arrays import arrays_of
from rayio.analyze.metrics import measure
from rayio.analyze.shape import RunShape
from rayio.imports.dlio_alone import Alone, has_checkpoints_alone, read_alone, scenario_of_alone
from rayio.imports.dlio_alone import record as record_alone
from rayio.imports.dlio_files import check_folder, name_of, number, rank_files
from rayio.imports.dlio_losses import batch_size, explained, has_barrier
from rayio.imports.dlio_published import as_published, lacking
from rayio.imports.dlio_results import Results, read
from rayio.imports.dlio_saved import LOAD, SAVE
from rayio.imports.dlio_scenario import scenario_of, scenario_of_reduced, title
from rayio.imports.dlio_spans import PLACED, record
from rayio.imports.dlio_summaries import Reduced, count, read_reduced
from rayio.records.metric_names import HEADLINE
from rayio.records.origin import IMPORTED, Origin
from rayio.records.run_result import Imported, Percentiles, RunResult, Seconds, Shares
from rayio.report.text.remarks import noted
from rayio.scenario import derive
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.schema.fields import show
from rayio.session.result import Run
from rayio.trace.recorder import Recorder
from rayio.trace.run_directory import RunDirectory
from rayio.version import __version__


def import_dlio_results(folder: str | Path, out: str | Path | None = None, *, reduced: bool = False) -> Run:
    """Import a result folder of DLIO or MLPerf Storage as a run.

    ``result.json`` has DLIO's own AU and, under ``imported``, its losses. Spans are only of ranks. A folder without
    ``RANK_output.json``, as most are published, gives a *reduced* import of its summary: AU and throughput as
    published, no spans, and ``imported.reduced`` names what is missing.

    Args:
        folder: the result folder.
        out: run directory to make; None picks ``runs/<folder's name>``.
        reduced: read only the summary, not the files of ranks.

    Raises:
        DataError: a file is missing, damaged or of another run; nothing is written.
        StorageError: the run directory exists or cannot be written.
    """
    folder = Path(folder)
    check_folder(folder)
    if has_checkpoints_alone(folder):
        return _import_alone(read_alone(folder, reduced=reduced), out)
    if reduced or not rank_files(folder):
        return _import_reduced(folder, out)
    results = read(folder)
    batch = batch_size(results)
    scenario, notes = scenario_of(results, batch)
    recorder = Recorder()
    record(results, recorder)
    directory = _directory(folder, out)
    try:
        _write(directory, results, recorder, batch, scenario, [*results.notes, *notes, PLACED])
    except BaseException:
        directory.unmake()
        raise
    return Run(directory)


def _directory(folder: Path, out: str | Path | None) -> RunDirectory:
    return RunDirectory.create(out if out is not None else Path("runs") / name_of(folder.absolute().name))


def _import_reduced(folder: Path, out: str | Path | None) -> Run:
    summary = read_reduced(folder)
    scenario, notes = scenario_of_reduced(summary)
    directory = _directory(folder, out)
    try:
        _write_reduced(directory, summary, scenario, [*notes, *summary.notes])
    except BaseException:
        directory.unmake()
        raise
    return Run(directory)


def _import_alone(results: Alone, out: str | Path | None) -> Run:
    scenario, notes = scenario_of_alone(results)
    directory = _directory(results.folder, out)
    try:
        _write_alone(directory, results, scenario, [*results.notes, *notes])
    except BaseException:
        directory.unmake()
        raise
    return Run(directory)


def _write_alone(directory: RunDirectory, results: Alone, scenario: Scenario | None, notes: list[str]) -> None:
    summary, imported = results.summary, results.imported
    _describe(
        directory, scenario, summary, folder=str(results.folder.absolute()), num_hosts=count(summary.get("num_hosts"))
    )
    name = title(results.config.workload, results.folder)
    common = _common(imported, scenario, name, "files of writers") | {
        "saved": results.moved(SAVE),
        "restored": results.moved(LOAD),
    }
    if results.has_all_ranks:
        recorder = Recorder()
        record_alone(results, recorder)
        if (table := recorder.drain()) is not None:
            directory.write_spans(table, "part-00000")
        measured = noted(measure(arrays_of(directory.slices()), RunShape(results.world_size, 1, 0, 1, 0)))
        result = replace(measured, notes=tuple(notes), **common)
    else:
        known: dict[str, Any] = dict.fromkeys(HEADLINE) | {"wall_seconds": results.wall_seconds, "steps": 0}
        result = RunResult(
            **known, world_size=results.world_size, time=Seconds(), share=Shares(), percentiles=Percentiles(),
            notes=(*lacking(imported), *notes), **common,
        )  # fmt: skip
    directory.write_result(result)


def _describe(directory: RunDirectory, scenario: Scenario | None, summary: Mapping[str, Any], **imported: Any) -> None:
    directory.write_info(
        {
            "rayio": __version__,
            "engine": "dlio",
            "imported": {"from": "dlio-results", "host": show(summary.get("hostname")), **imported},
            "started": show(summary.get("start")),
            "anchor": {"boot_id": "", "ns": 0},
        }
    )
    if scenario is not None:
        directory.write_scenario(to_yaml(scenario))


def _common(imported: Imported, scenario: Scenario | None, name: str, missing: str) -> dict[str, Any]:
    """Return the fields of a result that whole and reduced imports share; ``missing`` is not in the files."""
    return {
        "engine": "dlio",
        "scenario": name,
        "imported": imported,
        "dropped_samples_per_epoch": None if scenario is None else derive.dropped_samples(scenario),
        "capped_samples_per_epoch": None if scenario is None else derive.capped_samples(scenario),
        "origin": Origin(kind=IMPORTED, storage="unknown", leaves_out=(f"{missing} (not in the results)",)),
    }


def _write_reduced(directory: RunDirectory, published: Reduced, scenario: Scenario | None, notes: list[str]) -> None:
    imported = as_published(published)
    summary = published.summary
    hosts = count(summary.get("num_hosts"))
    _describe(
        directory, scenario, summary, folder=str(published.folder.absolute()), num_hosts=hosts, files=[*published.files]
    )
    steps = None if published.steps is None else published.steps * published.world_size * len(published.epochs)
    known: dict[str, Any] = dict.fromkeys(HEADLINE) | {
        "wall_seconds": published.wall_seconds,
        "steps": steps,
        "au_dlio": published.au,
        "au_dlio_stdev": published.au_stdev,
        "samples_per_second_dlio": published.samples_per_second,
        "samples_per_second_dlio_stdev": published.samples_per_second_stdev,
    }
    directory.write_result(
        RunResult(
            **known,
            world_size=published.world_size,
            time=Seconds(),
            share=Shares(),
            percentiles=Percentiles(),
            notes=(*lacking(imported), *notes),
            **_common(imported, scenario, title(published.config, published.folder), "steps"),
        )
    )


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
    _describe(
        directory, scenario, results.summary, folder=str(results.folder.absolute()),
        num_hosts=number(results.summary.get("num_hosts")),
        barrier_each_step=all(map(has_barrier, results.blocks)), spans=PLACED,
    )  # fmt: skip
    if (table := recorder.drain()) is not None:
        directory.write_spans(table, "part-00000")
    measured = noted(measure(arrays_of(directory.slices()), shape))
    losses = explained(results)
    if batch is None:
        notes = [*notes, "samples_per_second is unknown: the batch size is not in the results"]
    # DLIO's throughput is taken as published: its formula differs between versions of DLIO
    result = replace(
        measured,
        samples_per_second=None if batch is None else measured.samples_per_second,
        mib_per_second=None,  # not in the results, and 0 if measured from these spans
        au_dlio=losses.au,
        au_dlio_stdev=float(np.std([epoch.au for epoch in losses.epochs if epoch.au is not None])),
        samples_per_second_dlio=number(results.published.get("train_throughput_mean_samples_per_second")),
        samples_per_second_dlio_stdev=number(results.published.get("train_throughput_stdev_samples_per_second")),
        notes=(*notes, *measured.notes),
        **_common(losses, scenario, title(results.config, results.folder), "readers"),
    )
    directory.write_result(result)
