"""The scenario of DLIO's results, from the results and their configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rayio.errors import ScenarioError
from rayio.imports.dlio_files import name_of, number, section
from rayio.imports.dlio_losses import has_barrier
from rayio.imports.dlio_metrics import lenient
from rayio.imports.dlio_results import Results
from rayio.imports.dlio_summaries import Reduced, count
from rayio.imports.dlio_workload import workload_of
from rayio.kinds import FORMATS
from rayio.scenario import derive
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.scenario.storage import UNKNOWN

#: A note on the storage of imported results.
PREDICT = "the storage is not in the results; for predictions use rayio simulate RUN/scenario.yaml storage.model=NAME"


@dataclass(frozen=True, slots=True)
class _Known:
    folder: Path
    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    world_size: int
    epochs: int
    steps: int
    batch: int | None
    compute: Any
    sync: str | None


def scenario_of(results: Results, batch: int | None) -> tuple[Scenario | None, list[str]]:
    """Return the scenario of results (None if too little is known), and notes."""
    compute = np.concatenate([block.compute.ravel() for block in results.blocks])
    mean, stdev = round(float(compute.mean()), 9), float(compute.std())
    return _scenario(
        _Known(
            folder=results.folder,
            summary=results.summary,
            config=results.config,
            world_size=results.world_size,
            epochs=results.epochs,
            steps=sum(block.steps for block in results.of(0)),
            batch=batch,
            compute=mean if stdev < 1e-6 * mean else {"kind": "normal", "mean": mean, "stdev": stdev},
            sync="barrier" if all(map(has_barrier, results.blocks)) else "none",
        )
    )


def scenario_of_reduced(reduced: Reduced) -> tuple[Scenario | None, list[str]]:
    """Return the scenario of a reduced import (None if too little is known), and notes."""
    compute = _compute(section(reduced.config, "train"))
    known = {
        "the number of files (num_files_train)": reduced.summary.get("num_files_train"),
        "the batch size (reader.batch_size)": reduced.batch_size,
        "the compute time (train.computation_time)": compute,
    }
    if missing := [what for what, value in known.items() if value is None]:
        return None, [f"no scenario.yaml: not in the results: {', '.join(missing)}"]
    if not reduced.steps:
        return None, ["no scenario.yaml: by the results an epoch has no whole step"]
    return _scenario(
        _Known(
            folder=reduced.folder,
            summary=reduced.summary,
            config=reduced.config,
            world_size=reduced.world_size,
            epochs=len(reduced.epochs),
            steps=reduced.steps,
            batch=reduced.batch_size,
            compute=compute,
            sync=None,
        )
    )


def _scenario(run: _Known) -> tuple[Scenario | None, list[str]]:
    hosts, world = count(run.summary.get("num_hosts")), run.world_size
    nodes = hosts if hosts and world % hosts == 0 else 1
    reader, dataset = section(run.config, "reader", "data_reader"), section(run.config, "dataset")
    workers, prefetch = count(reader.get("read_threads")), count(reader.get("prefetch_size"))
    name = title(run.config, run.folder)
    unknown, notes = ["loader.shuffle"], []
    data: dict[str, Any] = {
        "name": name_of(name),
        "source": f"imported from DLIO results of {run.summary.get('start', 'an unknown time')}",
        "cluster": {"nodes": nodes, "ranks_per_node": world // nodes},
        "dataset": {
            "path": f"model://{name_of(name)}",
            "num_files": count(run.summary.get("num_files_train")),
            "samples_per_file": count(run.summary.get("num_samples_per_file")),
            "sample_bytes": _sample_bytes(run),
        },
        "storage": {"model": UNKNOWN},
        "loader": {"batch_size": run.batch},
        "train": {"epochs": run.epochs, "steps": run.steps, "compute": run.compute},
    }
    if run.sync is not None:
        data["train"]["sync"] = run.sync
    else:
        unknown.append("train.sync")
    if isinstance(form := dataset.get("format"), str) and form in [*FORMATS]:
        data["dataset"]["format"] = form
    else:
        unknown.append("dataset.format")
        if isinstance(form, str):
            notes.append(f"rayio has no format {form}: scenario.yaml has the default, which makes other requests")
    if workers is not None:
        data["loader"]["num_workers"] = workers
        data["loader"]["prefetch_factor"] = -(-prefetch // workers) if prefetch else 2
    else:
        unknown += ["loader.num_workers", "loader.prefetch_factor"]
    if reader.get("data_loader", run.config.get("framework")) == "tensorflow":
        notes.append("results of TensorFlow's loader: its read_threads are workers in scenario.yaml")
    notes += _occasions(run.config, name, data)
    try:
        scenario = build(data, "the scenario of these results")
        if derive.steps_per_epoch(scenario) != run.steps:
            raise ScenarioError(f"the run has {run.steps} steps, but its keys give {derive.steps_per_epoch(scenario)}")
    except ScenarioError as error:
        return None, [f"no scenario.yaml: {error}"]
    if nodes != (hosts or 1):
        notes.append(f"scenario.yaml has one node, because {world} ranks do not divide among {hosts} hosts")
    return scenario, [
        f"scenario.yaml has defaults for keys that are not in the results: {', '.join(unknown)}",
        *notes,
        PREDICT,
    ]


def _occasions(config: Mapping[str, Any], name: str, data: dict[str, Any]) -> list[str]:
    """Add the configured checkpoints and evaluations to a scenario's keys; return notes on those that cannot be."""
    flow = section(config, "workflow")
    wanted = [key for key in ("checkpoint", "evaluation") if flow.get(key) not in (None, False)]
    if not wanted:
        return []
    reading = workload_of(dict(config), "the configuration", name)
    if reading.refused:
        return [f"scenario.yaml has no {' and no '.join(wanted)}: {reading.refused[0]}"]
    theirs = reading.nested()
    if "checkpoint" in theirs:
        data["checkpoint"] = theirs["checkpoint"]
    if "evaluate" in theirs["train"]:
        data["train"]["evaluate"] = theirs["train"]["evaluate"]
        data["dataset"]["eval"] = theirs["dataset"]["eval"] | {"path": f"model://{name_of(name)}-eval"}
    return []


def _compute(train: Mapping[str, Any]) -> Any:
    """Return the configured compute time of a step for a scenario; None if unknown."""
    configured, stdev = train.get("computation_time"), lenient(train.get("computation_time_stdev"))
    if not isinstance(configured, Mapping):
        mean = lenient(configured)
        return mean if mean is None or not stdev else {"kind": "normal", "mean": mean, "stdev": stdev}
    kind, mean = configured.get("type", "normal"), lenient(configured.get("mean"))
    low, high = lenient(configured.get("min")), lenient(configured.get("max"))
    if kind == "uniform" and low is not None and high is not None:
        return {"kind": "uniform", "low": low, "high": high}
    if kind == "normal" and mean is not None:
        spread = lenient(configured.get("stdev")) or 0.0
        return {"kind": "normal", "mean": mean, "stdev": spread} if spread else mean
    return None


def _sample_bytes(run: _Known) -> Any:
    """Return the sample size from the configuration, else from the summary's bytes per host or per second.

    DLIO's GB per host are 2**30 bytes, its MB per second 2**20.
    """
    dataset, summary = section(run.config, "dataset"), run.summary
    mean = lenient(dataset.get("record_length_bytes", dataset.get("record_length")))
    stdev = lenient(dataset.get("record_length_bytes_stdev", dataset.get("record_length_stdev", 0)))
    if mean is not None:
        return {"kind": "normal", "mean": mean, "stdev": stdev} if stdev else mean
    keys = ("num_files_train", "num_samples_per_file", "data_size_per_host_GB", "num_hosts")
    known = [value for value in (number(summary.get(key)) for key in keys) if value and value > 1e-9]
    if len(known) == len(keys):
        files, samples, size, hosts = known
        return round(size * 2**30 * hosts / (files * samples))
    metric = section(summary, "metric")
    bytes_rate, rate = (
        lenient(metric.get(key)) for key in ("train_io_mean_MB_per_second", "train_throughput_mean_samples_per_second")
    )
    return round(bytes_rate * 2**20 / rate) if bytes_rate and rate else None


def title(config: Mapping[str, Any], folder: Path) -> str:
    """Return the workload's name, from its configuration or the folder."""
    model = config.get("model")
    name = model.get("name") if isinstance(model, Mapping) else model
    return name if isinstance(name, str) and name else folder.absolute().name
