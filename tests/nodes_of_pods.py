"""Start a Ray cluster here whose nodes are the pods that ``rayio k8s`` prints, run the scenario on it, and print JSON.

What a pod's node has is what ``ray start`` would be told there: processors, object store and labels.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ray
from four_nodes import patiently
from ray.cluster_utils import Cluster

from rayio.remote.k8s.documents import documents
from rayio.remote.k8s.scenario_job import job_of
from rayio.scenario.write import to_yaml
from rayio.session import run
from scenarios import scenario

WANTED: dict[str, Any] = {
    "cluster": {"nodes": 2, "ranks_per_node": 1, "placement": "dedicated_readers", "reader_nodes": 2},
    "dataset__path": "data",
    "loader__queue": "in_rank",
    "loader__num_workers": 1,
    "train__epochs": 1,
}


def node_of(group: dict[str, Any]) -> dict[str, Any]:
    """What Ray's node has in a pod of this group."""
    (container,) = group["template"]["spec"]["containers"]
    limits, params = container["resources"]["limits"], group["rayStartParams"]
    return {
        "num_cpus": int(params.get("num-cpus", limits["cpu"])),
        "memory": int(limits["memory"].removesuffix("Mi")) << 20,
        "object_store_memory": int(params["object-store-memory"]),
        "labels": group.get("labels", {}),
    }


def main(root: str, workers: int) -> None:
    ray._private.services.get_node = patiently(ray._private.services.get_node)
    wanted = scenario(**WANTED)
    source = Path(root, "wanted.yaml")
    source.write_text(to_yaml(wanted))
    job = documents(job_of(str(source), image="rayio:1", claim="shared", workers=workers))[-1]
    spec = job["spec"]["rayClusterSpec"]
    cluster = Cluster(initialize_head=True, head_node_args=node_of(spec["headGroupSpec"]))
    groups = {
        cluster.add_node(**node_of(group)).node_id: group["groupName"]
        for group in spec["workerGroupSpecs"]
        for _ in range(group["replicas"])
    }
    left = run(wanted, address=cluster.address, root=root, out="out")
    info = left.directory.info
    where = {actor["name"]: actor["ray_node"] for actor in info["actors"] if "ray_node" in actor}
    told = {
        "exit": left.exit_code,
        "even": left.result["ledger"]["even"],
        "groups": sorted(groups.values()),
        "homes": [groups[node] for _, node in sorted(info["placement"]["ray_node_of"].items())],
        "ranks": sorted({groups[node] for name, node in where.items() if name.startswith("rank-")}),
        "readers": sorted({groups[node] for name, node in where.items() if name.startswith("reader-")}),
        "is_packed": info["placement"]["is_packed"],
        "notes": left.result["notes"],
    }
    sys.stdout.write(json.dumps(told) + "\n")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
