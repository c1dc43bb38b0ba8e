"""The scenario of a training loop that another program ran, from its steps and from what its loader tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayio.errors import ScenarioError
from rayio.imports.dlio_files import name_of
from rayio.imports.loops import Loads, RankLoop
from rayio.scenario import derive
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.scenario.storage import UNKNOWN

#: Steps of a rank that its compute is not measured on: the first one compiles, and makes its memory.
WARMUP = 1

#: Fewer bytes of a sample than rayio's own samples have are not known.
LEAST_BYTES = derive.MIN_SAMPLE_BYTES


@dataclass(frozen=True, slots=True)
class Shape:
    """The epochs and steps of a loop: ``planned`` is the length of its loader, None if that is not known."""

    epochs: int
    steps: int
    planned: int | None

    @classmethod
    def of(cls, loops: Sequence[RankLoop], planned: int | None) -> Shape:
        """Return the shape of loops that have a step."""
        epochs = 1 + max(int(loop.epoch.max(initial=0)) for loop in loops)
        most = 1 + max(int(loop.step.max(initial=0)) for loop in loops)
        return cls(epochs, most, None if planned is None else max(planned, most))


def scenario_of(
    name: str,
    loops: Sequence[RankLoop],
    loads: Sequence[Loads],
    facts: Mapping[str, Any],
    *,
    world_size: int,
    hosts: int,
    compute: Any,
    meets: bool,
    source: str,
) -> tuple[Scenario, list[str]]:
    """Return the scenario of loops, and notes on what it lacks; ``compute`` is the distribution of the work on a batch.

    Raises:
        ScenarioError: the numbers of the loop fit no scenario.
    """
    notes = []
    shape = Shape.of(loops, facts.get("batches"))
    batch = facts.get("batch_size")
    if not batch:
        seen = max((int(load.samples.max(initial=0)) for load in loads), default=0)
        batch = seen or 1
        if not seen:
            notes.append("the loader does not tell its batch size: samples/s counts batches; give batch_size=")
    nodes = hosts if world_size % hosts == 0 else 1
    has_reads = any(len(load) for load in loads)
    workers = int(facts.get("num_workers") or 0)
    loader: dict[str, Any] = {"batch_size": batch, "num_workers": workers, "shuffle": "none"}
    if facts.get("is_dataloader"):
        loader |= {"kind": "torch", **{name: facts[name] for name in ("in_order",) if name in facts}}
        if workers:
            loader["persistent_workers"] = bool(facts.get("persistent_workers"))
    if workers:
        loader["prefetch_factor"] = int(facts.get("prefetch_factor") or 2)
    samples, nbytes = (sum(int(getattr(load, name).sum()) for load in loads) for name in ("samples", "nbytes"))
    each = round(nbytes / samples) if samples else 0
    if has_reads and each < LEAST_BYTES:
        who, why = "workers" if workers else "ranks", "the dataset is in memory, mapped, or makes its samples"
        none = f"{who} read no bytes by calls of read ({why})" if samples else "no bytes of batches are known"
        notes.append(f"{none}: sample_bytes is a placeholder, and no MiB/s is known")
    data: dict[str, Any] = {
        "name": name_of(name),
        "source": source,
        "cluster": {"nodes": nodes, "ranks_per_node": world_size // nodes},
        "dataset": {
            "path": f"model://{name_of(name)}",
            "format": "raw",
            "num_files": 1,
            "sample_bytes": max(each, LEAST_BYTES),
        },
        "storage": {"model": UNKNOWN},
        "loader": loader,
        "train": {
            "epochs": shape.epochs,
            "compute": compute,
            "sync": "barrier" if meets else "none",
            "warmup_steps": WARMUP if shape.epochs * shape.steps > WARMUP else 0,
        },
        "trace": {"level": "batch" if has_reads else "step"},
    }
    planned = shape.planned or shape.steps
    if shape.steps < planned:
        data["train"]["steps"] = shape.steps
    drops = bool(facts.get("drop_last"))
    for files, drop_last in _datasets(facts.get("samples"), planned, batch, world_size, drops):
        data["dataset"]["num_files"], loader["drop_last"] = files, drop_last
        scenario = build(data, f"the scenario of {name}")
        if derive.steps_per_epoch(scenario) == shape.steps:
            return scenario, notes
    raise ScenarioError(f"{name}: its steps fit no scenario")


def _datasets(samples: Any, planned: int, batch: int, ranks: int, drops: bool) -> Iterator[tuple[int, bool]]:
    """Yield numbers of samples with which a loader may have its length, the likeliest first, and ``drop_last``."""
    if isinstance(samples, int) and samples > 0:
        yield samples, drops
        yield -(-samples // ranks) * ranks, drops  # a DistributedSampler repeats samples for an equal share of each
        yield max(samples // ranks, 1) * ranks, drops
    yield planned * batch * ranks, True


def warm_compute(loops: Sequence[RankLoop]) -> np.ndarray[Any, Any]:
    """Return the seconds of work on each batch, without what ranks waited for each other, and without warm-up steps."""
    each = []
    for loop in loops:
        ns = loop.done - loop.arrived - (loop.met if len(loop.met) else 0)
        each.append(ns[WARMUP:] if len(ns) > WARMUP else ns)
    return np.concatenate(each) / 1e9 if each else np.zeros(0)
