"""Warnings about pods too large for any machine: Kubernetes accepts them, and they stay pending until the deadline."""

from __future__ import annotations

from collections.abc import Iterator

from rayio.remote.k8s.sizes import Pod, Pods
from rayio.scenario.model import Scenario
from rayio.schema.fields import show
from rayio.units import format_bytes

#: The largest machines of clouds (AWS's High Memory instances: 448 processors, 24 TiB; general-purpose machines of AWS,
#: Google and Azure end at 200 to 400 processors).
MOST_CPUS, MOST_BYTES = 448, 24 << 40


def too_large(pods: Pods, scenario: Scenario) -> Iterator[str]:
    """Iterate over a warning for each group of pods that is too large, with the key and the remedy."""
    cluster, loader = scenario.cluster, scenario.loader
    groups: dict[str, Pod | None] = {"nodes": pods.worker, "reader-nodes": pods.dedicated, "readers": pods.reader}
    for name, pod in groups.items():
        if pod is None or (pod.cpus <= MOST_CPUS and pod.memory_bytes <= MOST_BYTES):
            continue
        if name == "readers" and cluster.reader_pool is not None:
            why = f"cluster.reader_pool.slots={cluster.reader_pool.slots}"
            remedy = "lower it and raise cluster.reader_pool.nodes"
        elif pod.cpus > MOST_CPUS and pod.cpus in _listed(cluster.cores):
            why, remedy = f"cluster.cores has {pod.cpus}", "lower it"
        elif name == "reader-nodes":
            why, remedy = f"cluster.reader_nodes={cluster.reader_nodes}", "raise it"
        elif pods.num_workers < cluster.nodes:
            why, remedy = f"--workers {pods.num_workers} for cluster.nodes={cluster.nodes}", "raise it"
        elif pod.cpus <= MOST_CPUS and 2 * pod.store_bytes > pod.memory_bytes:
            why = f"loader.prefetch_factor={loader.prefetch_factor}"
            remedy = "lower it, or bound loader.max_bytes_in_flight"
        else:
            why = f"cluster.ranks_per_node={show(cluster.ranks_per_node)} and loader.num_workers={loader.max_workers}"
            remedy = "lower one of them"
        yield (
            f"{why}: a pod of the group {name} needs {pod.cpus:,} processors and {format_bytes(pod.memory_bytes)} "
            f"of memory and may never start (the largest machines have {MOST_CPUS} and {format_bytes(MOST_BYTES)}); "
            f"{remedy}"
        )


def _listed(cores: int | tuple[int, ...] | None) -> tuple[int, ...]:
    return cores if isinstance(cores, tuple) else ()
