"""The summary of a run with the fields that reviewers of MLPerf Storage know: DLIO's ``summary.json``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.arrays import arrays_of
from rayio.analyze.shape import RunShape
from rayio.errors import DataError
from rayio.imports.dlio_files import SUMMARY
from rayio.imports.dlio_formulas import dlio
from rayio.imports.mlperf_rules import floor_of, record_bytes
from rayio.predict.explain import scenario_of
from rayio.records.run_result import Imported, RunResult
from rayio.scenario import derive
from rayio.scenario.model import Scenario
from rayio.session.result import Run
from rayio.storage.stores.refusals import write_text
from rayio.units import format_seconds

Floats = NDArray[np.float64]

#: The metric of an expectation that replaces the required AU.
EXPECTED = "au_dlio"


def write_mlperf(run: Run, path: Path) -> Path:
    """Write a run's summary to ``path`` (in a folder: ``summary.json``) and return the file.

    Raises:
        DataError: the run has no AU by DLIO's formula, or no scenario.
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
    if run.directory.scenario is None:
        raise DataError(f"{run.address} has no scenario.yaml, so its samples and ranks are unknown")
    scenario = scenario_of(run.directory)
    au, rates = _epochs(run, result, scenario)
    required, record = _required(scenario), record_bytes(scenario)
    nodes, ranks = scenario.cluster.nodes, result.world_size
    samples = derive.num_samples(scenario)
    metric: dict[str, Any] = {
        "train_au_percentage": au.tolist(),
        "train_au_mean_percentage": float(au.mean()),
        "train_au_meet_expectation": "success" if float(au.mean()) >= 100 * required else "fail",
        "train_au_stdev_percentage": float(au.std()),
    }
    mean, stdev = result.samples_per_second_dlio, result.samples_per_second_dlio_stdev
    if rates is not None:
        metric["train_throughput_samples_per_second"] = rates.tolist()
        mean, stdev = float(rates.mean()), float(rates.std())
    for name, rate in (("mean", mean), ("stdev", stdev)):
        if rate is not None:
            metric[f"train_throughput_{name}_samples_per_second"] = rate
            metric[f"train_io_{name}_MB_per_second"] = rate * record / 2**20
    each = scenario.cluster.on_nodes
    size = (ranks // nodes if isinstance(each, int) else max(each)) * (samples // ranks) * record / 2**30
    return {
        **_times(run, result),
        "num_accelerators": ranks,
        "num_hosts": nodes,
        "metric": metric,
        "num_files_train": derive.num_files(scenario),
        "num_files_eval": scenario.dataset.eval.num_files,
        "num_samples_per_file": scenario.dataset.samples_per_file,
        "data_size_per_host_GB": size,
        "epochs": len(au),
        **_hosts(result, size),
        "rayio": {
            "engine": result.engine,
            "is_measured": result.engine in ("ray", "local"),
            "workload": scenario.name,
            "required_au_percentage": 100 * required,
        },
    }


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
    return by_epoch.au_percent, by_epoch.samples_per_second


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
    start = datetime.fromisoformat(started).astimezone(UTC).replace(tzinfo=None)
    end = start + timedelta(seconds=seconds)
    return {
        "start": start.isoformat(timespec="microseconds"),
        "end": end.isoformat(timespec="microseconds"),
        "hostname": str(run.directory.info.get("host", "unknown")),
    }


def _hosts(result: RunResult, size: float) -> dict[str, Any]:
    """Return memory and processors of the hosts, and whether the data of each fits its memory."""
    hosts = [host for host in result.hosts or () if host.memory_bytes is not None]
    if not hosts:
        return {}
    memory = [(host.memory_bytes or 0) / 2**30 for host in hosts]
    return {
        "host_memory_GB": memory,
        "host_cpu_count": [host.cores or 0 for host in hosts],
        "potential_caching": [int(size >= 0 and gigabytes > size) for gigabytes in memory],
    }
