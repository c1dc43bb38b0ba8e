"""The summary of a run with the fields that reviewers of MLPerf Storage know: DLIO's ``summary.json``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.arrays import arrays_of
from rayio.analyze.run_scenario import scenario_of, text_of
from rayio.analyze.shape import RunShape
from rayio.errors import DataError
from rayio.imports.dlio_files import SUMMARY
from rayio.imports.dlio_formulas import dlio
from rayio.imports.mlperf_rules import floor_of, record_bytes
from rayio.records.run_result import Imported, RunResult
from rayio.scenario import derive
from rayio.scenario.model import Scenario
from rayio.session.mlperf_occasions import evaluations, loaded, saved
from rayio.session.result import Run
from rayio.storage.stores.refusals import write_text
from rayio.units import format_seconds

Floats = NDArray[np.float64]

#: The metric of an expectation that replaces the required AU.
EXPECTED = "au_dlio"


def write_mlperf(run: Run, path: Path) -> Path:
    """Write a run's summary to ``path`` (in a folder: ``summary.json``) and return the file.

    Raises:
        DataError: the run trained without an AU by DLIO's formula, or has no scenario.
        StorageError: the file cannot be written.
    """
    target = path / SUMMARY if path.is_dir() or not path.suffix else path
    write_text(target, json.dumps(summary_of(run), indent=4) + "\n", "--mlperf")
    return target


def summary_of(run: Run) -> dict[str, Any]:
    """Return a run's numbers by the names of DLIO: percent, samples/s, and MB of 2**20 bytes.

    Raises:
        DataError: the run has no AU by DLIO's formula, or no scenario.
    """
    result = run.result
    if text_of(run.directory) is None:
        raise DataError(f"{run.address} has no scenario.yaml, so its samples and ranks are unknown")
    scenario = scenario_of(run.directory)
    nodes, ranks = scenario.cluster.nodes, result.world_size
    metric, more = _checkpoints(run, result, scenario)
    epochs, dataset, about = 0, dict[str, Any](), dict[str, Any]()
    if derive.phases(scenario) is None:
        required, record = _required(scenario), record_bytes(scenario)
        au, rates = _epochs(run, result, scenario)
        ranks_of_sample = derive.ranks_of_sample(scenario)  # each reads it
        mean, stdev = result.samples_per_second_dlio, result.samples_per_second_dlio_stdev
        metric = _busy("train", au, rates, mean, stdev, required, record * ranks_of_sample) | metric
        if result.imported is None and (evaluated := evaluations(run.directory.slices(), scenario)) is not None:
            rates = evaluated.samples_per_second / ranks_of_sample
            metric |= _busy("eval", evaluated.au_percent, rates, None, None, required, record * ranks_of_sample)
        each = scenario.cluster.on_nodes
        most = ranks // nodes if isinstance(each, int) else max(each)
        size = most * (derive.num_samples(scenario) // ranks) * record / 2**30
        epochs, about = len(au), {"required_au_percentage": 100 * required}
        dataset = {
            "num_files_train": derive.num_files(scenario),
            "num_files_eval": scenario.dataset.eval.num_files,
            "num_samples_per_file": scenario.dataset.samples_per_file,
            "data_size_per_host_GB": size,
        }
    elif not metric:
        raise DataError(f"{run.address} trained no step and has no span of a checkpoint, so there is no summary")
    return {
        **_times(run, result),
        "num_accelerators": ranks,
        "num_hosts": nodes,
        "metric": metric,
        **dataset,
        "epochs": epochs,
        **_hosts(result, dataset.get("data_size_per_host_GB")),
        "rayio": {
            "engine": result.engine,
            "is_measured": result.engine in ("ray", "local"),
            "workload": scenario.name,
            **about,
            **more,
        },
    }


def _busy(
    kind: str, au: Floats, rates: Floats | None, mean: float | None, stdev: float | None, required: float, record: int
) -> dict[str, Any]:
    """Return the fields of AU and throughput of training, or of evaluations; ``mean`` and ``stdev`` if no rates are."""
    metric: dict[str, Any] = {
        f"{kind}_au_percentage": au.tolist(),
        f"{kind}_au_mean_percentage": float(au.mean()),
        f"{kind}_au_meet_expectation": "success" if float(au.mean()) >= 100 * required else "fail",
        f"{kind}_au_stdev_percentage": float(au.std()),
    }
    if rates is not None:
        metric[f"{kind}_throughput_samples_per_second"] = rates.tolist()
        mean, stdev = float(rates.mean()), float(rates.std())
    for name, rate in (("mean", mean), ("stdev", stdev)):
        if rate is not None:
            metric[f"{kind}_throughput_{name}_samples_per_second"] = rate
            metric[f"{kind}_io_{name}_MB_per_second"] = rate * record / 2**20
    return metric


def _checkpoints(run: Run, result: RunResult, scenario: Scenario) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return DLIO's fields of checkpoints that were written and read back, and what they lack."""
    if result.imported is not None:
        return _as_imported(result.imported), {}
    if scenario.checkpoint is None:
        return {}, {}
    slices = run.directory.slices()
    moved = {"save": saved(slices, scenario), "load": loaded(slices, scenario)}
    known = {kind: each for kind, each in moved.items() if each is not None}
    if not known:
        return {}, {}
    fields = {name: value for kind, each in known.items() for name, value in each.fields(kind).items()}
    size = {"checkpoint_size_GB": derive.checkpoint_bytes(scenario) / 2**30}
    return fields | size, {"checkpoints": {kind: each.more() for kind, each in known.items()}}


def _as_imported(imported: Imported) -> dict[str, Any]:
    """Return DLIO's fields of imported checkpoints, as they were published."""
    fields: dict[str, float | None] = {}
    for kind, moved in (("save", imported.saved), ("load", imported.restored)):
        if moved is not None:
            fields |= {
                f"{kind}_checkpoint_io_mean_GB_per_second": _gib(moved.mib_per_second),
                f"{kind}_checkpoint_io_stdev_GB_per_second": _gib(moved.mib_per_second_stdev),
                f"{kind}_checkpoint_duration_mean_seconds": moved.seconds,
                f"{kind}_checkpoint_duration_stdev_seconds": moved.seconds_stdev,
            }
    if fields and imported.checkpoint_bytes is not None:
        fields["checkpoint_size_GB"] = imported.checkpoint_bytes / 2**30
    return {name: value for name, value in fields.items() if value is not None}


def _gib(mib: float | None) -> float | None:
    return None if mib is None else mib / 1024


def _epochs(run: Run, result: RunResult, scenario: Scenario) -> tuple[Floats, Floats | None]:
    """Return AU and throughput by epoch, as DLIO counts them."""
    if isinstance(result.imported, Imported):
        epochs = result.imported.epochs
        au = [epoch.au if epoch.au is not None else epoch.published_au for epoch in epochs]
        rates = [epoch.samples_per_second for epoch in epochs]
        if any(value is None for value in au):
            raise DataError(f"{run.address} has no AU of every epoch, so there is no summary")
        return np.array(au, np.float64), None if None in rates else np.array(rates, np.float64)
    shape = RunShape.of(scenario)
    arrays = arrays_of(run.directory.slices())
    of_ranks = shape.steps(np.arange(shape.world_size))
    by_epoch = dlio(
        arrays.steps,
        batch_size=shape.batch_size,
        steps_of=of_ranks[arrays.lives.rank],
        planned=of_ranks.sum(axis=0),
    )
    if not len(by_epoch.au_percent):
        raise DataError(
            f"{run.address} has no AU by DLIO's formula: it needs a complete epoch of at least three steps, and spans "
            "of steps (trace.level)"
        )
    return by_epoch.au_percent, by_epoch.samples_per_second / shape.ranks_of_sample


def _required(scenario: Scenario) -> float:
    """Return the required AU, 0 to 1: that of ``expect``, else that of MLPerf Storage."""
    condition = scenario.expect.get(EXPECTED)
    if condition is not None and condition.operator in (">=", ">"):
        return condition.value / 100
    return floor_of(scenario)


def _times(run: Run, result: RunResult) -> dict[str, Any]:
    """Return start and end of a measured run; a simulation has a length alone."""
    started, seconds = run.directory.info.get("started"), result.wall_seconds
    if not isinstance(started, str) or seconds is None or result.engine == "virtual":
        return {"hostname": f"no host: {result.engine}, {format_seconds(seconds or 0.0)}"}
    try:
        start = datetime.fromisoformat(started).astimezone(UTC).replace(tzinfo=None)
        end = start + timedelta(seconds=seconds)
    except (ValueError, OverflowError):  # an imported summary has any text there
        return {"hostname": str(run.directory.info.get("host", "unknown"))}
    return {
        "start": start.isoformat(timespec="microseconds"),
        "end": end.isoformat(timespec="microseconds"),
        "hostname": str(run.directory.info.get("host", "unknown")),
    }


def _hosts(result: RunResult, size: float | None) -> dict[str, Any]:
    """Return memory and processors of the hosts, and whether the data of each fits its memory, if it reads any."""
    hosts = [host for host in result.hosts or () if host.memory_bytes is not None]
    if not hosts:
        return {}
    memory = [(host.memory_bytes or 0) / 2**30 for host in hosts]
    cached = {} if size is None else {"potential_caching": [int(gigabytes > size) for gigabytes in memory]}
    return {"host_memory_GB": memory, "host_cpu_count": [host.cores or 0 for host in hosts], **cached}
