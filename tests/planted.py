"""Planted machines: simulated runs with known costs, recorded as if they had been runs on Ray."""

from __future__ import annotations

from typing import Any

from rayio.analyze.arrays import RunArrays
from rayio.analyze.metrics import measure
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import texts
from rayio.predict.learnable import Learnable
from rayio.scenario.costs import taken
from rayio.scenario.decode import Work
from rayio.scenario.model import Scenario
from scenarios import scenario, simulated

#: What is to be found again: the costs of a run whose two ranks keep both cores of their node busy.
TRUTH: dict[str, Any] = {
    "lease": "2 ms", "put": "3 ms", "take": "6 ms", "step": "300 us",
    "cpu": {
        "slice": "4 ms", "contention": 1.2, "step": "300 us", "format": "npz", "sample": "1 ms",
        "bandwidth": "2 GB/s", "queue": "2 ms", "rank": "1 ms",
    },
}  # fmt: skip
STORAGE = {"first_byte": "200 us", "connection_bandwidth": "2 GB/s", "bandwidth": "100 GB/s"}


def busy(size: str, workers: int, ranks: int, compute: str = "8 ms") -> dict[str, Any]:
    """Return the changes of a scenario on real files: batches of four samples, three epochs of 40 steps."""
    return {
        "dataset__path": "data", "dataset__num_files": 160 * ranks, "dataset__sample_bytes": size,
        "cluster__ranks_per_node": ranks,
        "loader__batch_size": 4, "loader__num_workers": workers, "loader__payload": "real", "train__epochs": 3,
        "train__compute": compute, "storage__model": STORAGE,
    }  # fmt: skip


def made(changes: dict[str, Any], costs: dict[str, Any] | None = None) -> Scenario:
    """Return a scenario of the planted machine: two cores, and its costs."""
    return scenario(**{"costs": TRUTH if costs is None else costs, "cluster__cores": 2, **changes})


def sums(batches: int, samples: float, nbytes: float, seconds: float) -> dict[str, float]:
    """Return the CPU time of batches as a run records it; the numbers are those of each batch."""
    return {
        "batches": batches, "samples": samples * batches, "bytes": nbytes * batches, "seconds": seconds * batches,
        "samples_samples": samples**2 * batches, "samples_bytes": samples * nbytes * batches,
        "bytes_bytes": nbytes**2 * batches, "samples_seconds": samples * seconds * batches,
        "bytes_seconds": nbytes * seconds * batches,
    }  # fmt: skip


def recorded(wanted: Scenario, factor: float = 1.0) -> Learnable:
    """Return a simulated run as if it had been one on Ray, with the CPU time of its processes, times ``factor``."""
    spans = simulated(wanted).spans
    batches = int((texts(spans, "name", ("data_wait",)) == 0).sum())
    cpu, decode, size = wanted.charges.cpu, wanted.loader.decode, wanted.loader.batch_size
    nbytes = wanted.dataset.sample_bytes.expected * size
    read = factor * cpu.parsing(size, round(nbytes))
    decoded = factor * decode.seconds(size, nbytes) if isinstance(decode, Work) else 0.0
    roles = {
        "reader": read + decoded + factor * wanted.charges.put_work(nbytes),
        "queue": factor * cpu.queue,
        "rank": factor * (cpu.rank + cpu.step + taken(round(nbytes), wanted.charges.receive_bandwidth)),
    }
    said = {
        "roles": {role: each * batches for role, each in roles.items()},
        "nodes": 0.0,
        "reads": sums(batches, size, nbytes, read),
        "decodes": sums(batches if decoded else 0, size, nbytes, decoded),
    }
    info = {"engine": "ray", "rayio": "0", "modelled_storage": False, "payload": "real", "cpus": 2, "cpu_seconds": said}
    return Learnable("run", wanted, info, spans)


def seconds_per_step(wanted: Scenario) -> float:
    """Return the simulated wall time of a step."""
    found = measure(RunArrays.of_spans(simulated(wanted).spans), RunShape.of(wanted))
    return 1 / float(found["samples_per_second"]) * wanted.loader.batch_size * wanted.cluster.world_size
