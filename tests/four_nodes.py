"""Start a Ray cluster of four nodes here, two of them for readers, run every placement on it, and print JSON."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from typing import Any

import ray
from ray.cluster_utils import Cluster

from rayio.engines.ray.placement import READERS, TIER
from rayio.session import run
from scenarios import scenario

RESOURCES: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 << 20, "memory": 2 << 30}

#: What each run changes; every one has four ranks, which read the same.
RUNS: dict[str, dict[str, Any]] = {
    "one node": {"cluster__ranks_per_node": 4},
    "colocated": {"cluster__nodes": 4},
    "spread": {"cluster__nodes": 4, "cluster__placement": "spread"},
    "dedicated_readers": {
        "cluster__nodes": 2, "cluster__ranks_per_node": 2, "cluster__placement": "dedicated_readers",
        "cluster__reader_nodes": 2, "cluster__nic_bandwidth": "1 GB/s", "loader__queue": "actor",
    },
    "packed": {
        "cluster__nodes": 4, "cluster__placement": "dedicated_readers", "cluster__reader_nodes": 4,
        "cluster__nic_bandwidth": "1 MB/s",
    },
}  # fmt: skip


def patiently(ask: Any) -> Any:
    """Have Ray ask for five minutes whether a node has started: it gives up after 30 s, which a busy machine takes."""

    def asked(*arguments: Any) -> Any:
        for _ in range(600):
            try:
                return ask(*arguments)
            except RuntimeError:
                time.sleep(0.5)
        return ask(*arguments)

    return asked


def main(root: str, names: list[str]) -> None:
    ray._private.services.get_node = patiently(ray._private.services.get_node)
    cluster = Cluster(initialize_head=True, head_node_args=RESOURCES)
    cluster.add_node(**RESOURCES)
    kept = [cluster.add_node(**RESOURCES, labels={TIER: READERS}).node_id for _ in range(2)]
    told: dict[str, Any] = {}
    for name in names or RUNS:
        wanted = scenario(**{
            "dataset__path": "data", "cluster__ranks_per_node": 1, "loader__queue": "in_rank",
            "loader__num_workers": 1, "train__epochs": 1, **RUNS[name],
        })  # fmt: skip
        engine = {"engine": "local"} if name == "one node" else {"address": cluster.address}
        left = run(wanted, **engine, root=root, out=name)
        spans, info = left.spans(), left.directory.info
        where = {actor["name"]: actor["ray_node"] for actor in info.get("actors", ()) if "ray_node" in actor}
        moved = spans[spans["name"] == "transfer"]
        told[name] = {
            "exit": left.exit_code,
            "ledger": left.result["ledger"],
            "delivered": sorted(spans[spans["name"] == "data_wait"]["link"].astype(int).tolist()),
            "ranks": sorted({node in kept for actor, node in where.items() if actor.startswith("rank-")}),
            "readers": sorted({node in kept for actor, node in where.items() if actor.startswith("reader-")}),
            "ray_nodes": len({node for actor, node in where.items() if actor.startswith(("rank-", "reader-"))}),
            "placement": info.get("placement"),
            "moved": dict(Counter(moved["role"])),
            "sent_seconds": (moved[moved["role"] == "reader"]["duration_ns"] / 1e9).tolist(),
            "moved_bytes": sorted(set(moved["bytes"].tolist())),
            "batches": int((spans["name"] == "read").sum()),
            "notes": left.result["notes"],
        }
    sys.stdout.write(json.dumps(told) + "\n")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
