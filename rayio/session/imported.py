"""Results of other benchmarks as run directories, so that every command that looks at a run can look at them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from rayio import __version__
from rayio.analyze.arrays import RunArrays
from rayio.analyze.metrics import RunShape, measure
from rayio.dlio.losses import batch_size, explained, has_barrier
from rayio.dlio.results import Results, number, read
from rayio.dlio.scenario import name_of, scenario_of, title
from rayio.dlio.spans import PLACED, record
from rayio.results.origin import IMPORTED, Origin
from rayio.scenario import derive
from rayio.scenario.fields import show
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.session.result import Run
from rayio.trace.recorder import Recorder
from rayio.trace.store import RunDirectory


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
    scenario, notes = scenario_of(results, batch)
    recorder = Recorder()
    record(results, recorder)
    directory = RunDirectory.create(out if out is not None else Path("runs") / name_of(folder.absolute().name))
    try:
        _write(directory, results, recorder, batch, scenario, [*results.notes, *notes, PLACED])
    except BaseException:
        directory.remove()
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
                "spans": PLACED,
            },
            "started": str(results.summary["start"]),
            "anchor": {"boot_id": "", "ns": 0},
        }
    )
    if scenario is not None:
        directory.write_scenario(to_yaml(scenario))
    if (table := recorder.drain()) is not None:
        directory.write_spans(table, "part-00000")
    measured = measure(RunArrays.of_spans(directory.spans()), shape)
    told = explained(results)
    if batch is None:
        notes = [*notes, "the batch size is not in the results, so neither is samples_per_second"]
    # Throughput by DLIO is taken as it was published: its formula is not the same in all versions of DLIO.
    result = replace(
        measured,
        engine="dlio",
        scenario=title(results),
        samples_per_second=None if batch is None else measured.samples_per_second,
        mib_per_second=None,  # the results say nothing of it; measured from spans it would be a zero
        au_dlio=told.au,
        au_dlio_stdev=float(np.std([epoch.au for epoch in told.epochs])),
        samples_per_second_dlio=number(results.published.get("train_throughput_mean_samples_per_second")),
        samples_per_second_dlio_stdev=number(results.published.get("train_throughput_stdev_samples_per_second")),
        dropped_samples_per_epoch=None if scenario is None else derive.dropped_samples(scenario),
        capped_samples_per_epoch=None if scenario is None else derive.capped_samples(scenario),
        imported=told,
        origin=Origin(kind=IMPORTED, storage="unknown", leaves_out=("readers: the results say nothing of them",)),
        notes=(*notes, *measured.notes),
    )
    directory.write_result(result)
