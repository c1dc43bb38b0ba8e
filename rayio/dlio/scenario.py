"""The scenario that DLIO's results and the configuration beside them describe, as far as they do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from rayio.dlio.losses import has_barrier
from rayio.dlio.results import Results, number
from rayio.errors import ScenarioError
from rayio.scenario import derive
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.scenario.storage import UNKNOWN


def scenario_of(results: Results, batch: int | None) -> tuple[Scenario | None, list[str]]:
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
        "name": name_of(title(results)),
        "source": f"imported from DLIO results of {summary['start']}",
        "cluster": {"nodes": nodes, "ranks_per_node": world // nodes},
        "dataset": {
            "path": f"model://{name_of(title(results))}",
            "num_files": summary.get("num_files_train"),
            "samples_per_file": summary.get("num_samples_per_file"),
            "sample_bytes": _sample_bytes(results),
        },
        "storage": {"model": UNKNOWN},
        "loader": {"batch_size": batch},
        "train": {
            "epochs": results.epochs,
            "steps": steps,
            "compute": mean if stdev < 1e-6 * mean else {"kind": "normal", "mean": mean, "stdev": stdev},
            "sync": "barrier" if all(map(has_barrier, results.blocks)) else "none",
        },
    }
    unknown = ["loader.shuffle"]
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
    return scenario, [
        f"not in the results, so rayio's default in scenario.yaml: {', '.join(unknown)}",
        "what storage it was is not in the results: to predict from it, name one (rayio simulate RUN/scenario.yaml "
        "storage.model=NAME)",
    ]


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


def title(results: Results) -> str:
    """Name the workload: as its configuration does, else as the folder."""
    model = results.config.get("model")
    name = model.get("name") if isinstance(model, Mapping) else model
    return name if isinstance(name, str) and name else results.folder.absolute().name


def name_of(text: str) -> str:
    """Make a name that a folder and a scenario may have."""
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]", "-", text).strip("-.") or "imported"
