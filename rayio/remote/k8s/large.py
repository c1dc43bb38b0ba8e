"""Pods that hardly any machine could hold: Kubernetes takes them without a word, and they wait until the deadline."""

from __future__ import annotations

from collections.abc import Iterator

from rayio.remote.k8s.sizes import Pod, Pods
from rayio.scenario.model import Scenario
from rayio.units import format_bytes

#: What the largest machines have that clouds sell beside a handful made for single databases (AWS's High Memory
#: instances with 24 TiB and 448 processors; general-purpose ones end at 200 to 400, as the lists of AWS, Google and
#: Azure say).
MOST_CPUS, MOST_BYTES = 448, 24 << 40


def too_large(pods: Pods, scenario: Scenario) -> Iterator[str]:
    """Say in a line of each group of pods that is too large for that which key made it so, and what to do."""
    cluster, loader = scenario.cluster, scenario.loader
    groups: dict[str, Pod | None] = {"nodes": pods.worker, "reader-nodes": pods.dedicated, "readers": pods.reader}
    for name, pod in groups.items():
        if pod is None or (pod.cpus <= MOST_CPUS and pod.memory_bytes <= MOST_BYTES):
            continue
        if name == "readers" and cluster.reader_pool is not None:
            why = f"cluster.reader_pool.slots={cluster.reader_pool.slots}"
            remedy = "lower it, and raise nodes beside it"
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
            why = f"cluster.ranks_per_node={cluster.ranks_per_node} and loader.num_workers={loader.max_workers}"
            remedy = "lower one of them"
        yield (
            f"{why}: a pod of the group {name} asks for {pod.cpus:,} processors and {format_bytes(pod.memory_bytes)} "
            f"of memory, and hardly any machine has more than {MOST_CPUS} or {format_bytes(MOST_BYTES)}, so it would "
            f"never start; {remedy}"
        )


def _listed(cores: int | tuple[int, ...] | None) -> tuple[int, ...]:
    return cores if isinstance(cores, tuple) else ()
