"""Results of other benchmarks as run directories, so that every command that looks at a run can look at them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rayio import __version__
from rayio.analyze.arrays import arrays_of
from rayio.analyze.metrics import measure
from rayio.analyze.shape import RunShape
from rayio.imports.dlio_files import check_folder, number, rank_files
from rayio.imports.dlio_losses import batch_size, explained, has_barrier
from rayio.imports.dlio_published import as_published, lacking
from rayio.imports.dlio_results import Results, read
from rayio.imports.dlio_scenario import name_of, scenario_of, scenario_of_reduced, title
from rayio.imports.dlio_spans import PLACED, record
from rayio.imports.dlio_summaries import Reduced, count, read_reduced
from rayio.records.metric_names import HEADLINE
from rayio.records.origin import IMPORTED, Origin
from rayio.records.run_result import Imported, Percentiles, RunResult, Seconds, Shares
from rayio.scenario import derive
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.schema.fields import show
from rayio.session.result import Run
from rayio.trace.recorder import Recorder
from rayio.trace.run_directory import RunDirectory


def import_dlio_results(folder: str | Path, out: str | Path | None = None, *, reduced: bool = False) -> Run:
    """Make a run directory of a result folder of DLIO or MLPerf Storage; ``out`` defaults to ``runs/<folder's name>``.

    ``result.json`` has DLIO's own AU from the records and, under ``imported``, where the points that it lacks of
    100 % went. The spans are those of the ranks; nothing is recorded of readers. A folder without a single
    ``RANK_output.json``, as most are published, gives a *reduced* import of its summary: AU and throughput are as
    published, there are no spans, and ``imported.reduced`` says what is not known. ``reduced`` asks for that although
    there are files of ranks.

    Raises:
        DataError: a file is missing, damaged or of another run; nothing is written then.
        StorageError: the run directory exists or cannot be written.
    """
    folder = Path(folder)
    check_folder(folder)
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
    found = read_reduced(folder)
    scenario, notes = scenario_of_reduced(found)
    directory = _directory(folder, out)
    try:
        _write_reduced(directory, found, scenario, [*notes, *found.notes])
    except BaseException:
        directory.unmake()
        raise
    return Run(directory)


def _describe(directory: RunDirectory, scenario: Scenario | None, summary: Mapping[str, Any], **imported: Any) -> None:
    """Write what was imported, and its scenario where there is one; as it is for whole and for reduced imports."""
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


def _of_any(told: Imported, scenario: Scenario | None, name: str, unsaid: str) -> dict[str, Any]:
    """The fields of a result that whole and reduced imports have alike; ``unsaid`` is what the files do not tell of."""
    return {
        "engine": "dlio",
        "scenario": name,
        "imported": told,
        "dropped_samples_per_epoch": None if scenario is None else derive.dropped_samples(scenario),
        "capped_samples_per_epoch": None if scenario is None else derive.capped_samples(scenario),
        "origin": Origin(kind=IMPORTED, storage="unknown", leaves_out=(f"{unsaid}: the results say nothing of them",)),
    }


def _write_reduced(directory: RunDirectory, found: Reduced, scenario: Scenario | None, notes: list[str]) -> None:
    told = as_published(found)
    summary = found.summary
    hosts = count(summary.get("num_hosts"))
    _describe(directory, scenario, summary, folder=str(found.folder.absolute()), num_hosts=hosts, files=[*found.files])
    steps = None if found.steps is None else found.steps * found.world_size * len(found.epochs)
    known: dict[str, Any] = dict.fromkeys(HEADLINE) | {
        "wall_seconds": found.wall_seconds,
        "steps": steps,
        "au_dlio": found.au,
        "au_dlio_stdev": found.au_stdev,
        "samples_per_second_dlio": found.samples_per_second,
        "samples_per_second_dlio_stdev": found.samples_per_second_stdev,
    }
    directory.write_result(
        RunResult(
            **known,
            world_size=found.world_size,
            time=Seconds(),
            share=Shares(),
            percentiles=Percentiles(),
            notes=(*lacking(told), *notes),
            **_of_any(told, scenario, title(found.config, found.folder), "steps"),
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
    measured = measure(arrays_of(directory.slices()), shape)
    told = explained(results)
    if batch is None:
        notes = [*notes, "the batch size is not in the results, so neither is samples_per_second"]
    # Throughput by DLIO is taken as it was published: its formula is not the same in all versions of DLIO.
    result = replace(
        measured,
        samples_per_second=None if batch is None else measured.samples_per_second,
        mib_per_second=None,  # the results say nothing of it; measured from spans it would be a zero
        au_dlio=told.au,
        au_dlio_stdev=float(np.std([epoch.au for epoch in told.epochs if epoch.au is not None])),
        samples_per_second_dlio=number(results.published.get("train_throughput_mean_samples_per_second")),
        samples_per_second_dlio_stdev=number(results.published.get("train_throughput_stdev_samples_per_second")),
        notes=(*notes, *measured.notes),
        **_of_any(told, scenario, title(results.config, results.folder), "readers"),
    )
    directory.write_result(result)
