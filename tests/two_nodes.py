"""Start a Ray cluster of two nodes here, run a scenario spread over them, and print what happened as JSON."""

from __future__ import annotations

import json
import sys

from ray.cluster_utils import Cluster

import rayio
from scenarios import scenario


def main(root: str) -> None:
    resources = {"num_cpus": 2, "object_store_memory": 100 << 20, "memory": 2 << 30}
    cluster = Cluster(initialize_head=True, head_node_args=resources)
    cluster.add_node(**resources)
    wanted = scenario(
        dataset__path="data", cluster__nodes=2, cluster__ranks_per_node=1, cluster__placement="spread",
        train__epochs=1,
    )  # fmt: skip
    run = rayio.run(wanted, address=cluster.address, root=root)
    where = {actor["name"]: actor.get("ray_node") for actor in run.directory.info["actors"]}
    sys.stdout.write(
        json.dumps({"ledger": run.result["ledger"], "where": where, "nodes": len(run.directory.info["nodes"])}) + "\n"
    )
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
