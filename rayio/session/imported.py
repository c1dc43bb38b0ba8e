"""Results of other benchmarks as run directories, so that every command that looks at a run can look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rayio import __version__
from rayio.analyze.metrics import RunShape, measure
from rayio.dlio.losses import batch_size, explained, has_barrier
from rayio.dlio.results import Results, number, read
from rayio.dlio.scenario import name_of, scenario_of, title
from rayio.dlio.spans import PLACED, record
from rayio.scenario import derive
from rayio.scenario.fields import show
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.session.result import Run
from rayio.trace.recorder import Recorder
from rayio.trace.store import RunDirectory

#: What a result of DLIO's says nothing about; measured from spans it would be a zero that means "not known".
NOT_RECORDED = ("mib_per_second",)


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
    result: dict[str, Any] = {"version": 1, "engine": "dlio", "scenario": title(results)}
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
