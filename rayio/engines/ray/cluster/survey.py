"""A survey of a cluster's nodes, each by a task without a CPU claim."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray
from ray.exceptions import GetTimeoutError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayio import storage
from rayio.engines.ray.cluster import connect
from rayio.engines.ray.cluster.connect import Node
from rayio.errors import ClusterError, RayioError
from rayio.trace.clocks import Offset, Ping, estimate

#: Seconds for a node's answers, whose first starts a process on a machine that may be busy; and for a connection.
ANSWER_SECONDS, REACH_SECONDS = 180, 5.0
#: Requests for a node's time; the first starts a process there.
PINGS = 8


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The answers of one node."""

    node: Node
    resources: dict[str, float]
    clock: Offset
    #: The reason why it cannot use the storage; None if it can, or was not asked.
    storage: str | None
    #: The reason why it does not reach the collector, or None.
    collector: str | None


def survey(address: str | None, log: Path, *, root: str | None, mark: str, collector: str | None) -> list[Surveyed]:
    """Survey each node; ``mark`` names a file below ``root`` that the driver wrote and every node must see.

    Raises:
        ClusterError: the cluster cannot be reached, or a node does not answer.
    """
    connection = connect.connect(address, log)
    try:
        given = {node["NodeID"]: dict(node["Resources"]) for node in ray.nodes()}
        return [_ask(node, given.get(node.node_id, {}), root, mark, collector) for node in connection.nodes]
    finally:
        connection.close()


def _ask(node: Node, resources: dict[str, float], root: str | None, mark: str, collector: str | None) -> Surveyed:
    where = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    time_there, stored, reached = (
        ray.remote(num_cpus=0, max_retries=0)(call).options(scheduling_strategy=where)
        for call in (_now, why_not_stored, why_not_reached)
    )

    def answer(reference: Any) -> Any:
        try:
            return ray.get(reference, timeout=ANSWER_SECONDS)
        except Exception as error:  # Ray raises many classes
            if isinstance(error, GetTimeoutError):
                what = f"node {node.host} ({node.node_id[:8]}) has not answered for {ANSWER_SECONDS} s"
                raise ClusterError(f"{what}; its machine is too busy, or has no memory for a process") from None
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ClusterError(f"node {node.host} ({node.node_id[:8]}) does not answer: {lines[-1]}") from None

    pings = []
    for _ in range(PINGS):
        sent = time.time_ns()
        other = answer(time_there.remote())
        pings.append(Ping(sent, other, time.time_ns()))
    return Surveyed(
        node=node,
        resources={name: amount for name, amount in resources.items() if not name.startswith("node:")},
        clock=estimate(pings),
        storage=None if root is None else answer(stored.remote(root, mark, node.node_id)),
        collector=None if collector is None else answer(reached.remote(collector)),
    )


def _now() -> int:
    return time.time_ns()


def why_not_stored(root: str, mark: str, own: str) -> str | None:
    """Return the reason why a file of another node below ``root`` cannot be read or written here; None if it can."""
    try:
        store = storage.open(root)
        if store.read(mark) != mark.encode():
            return f"{store.address} is not the same folder there: neither node sees the other's files"
        name = f"{mark}-{own}"
        store.write(name, lambda file: file.write(own.encode()))
        content = store.read(name)
        store.remove(name)
    except RayioError as error:
        return str(error)
    return None if content == own.encode() else f"{root}: what was written there is read differently"


def why_not_reached(endpoint: str) -> str | None:
    """Return the reason why the collector's port does not accept a connection; None if it does."""
    parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "localhost", port), timeout=REACH_SECONDS).close()
    except OSError as error:
        return f"nobody listens at {parts.hostname}:{port} ({error.strerror or error})"
    return None
