"""Start a Ray cluster of two nodes here, run a scenario spread over them, and print what happened as JSON.

With ``lose`` as second argument the other node is lost once ranks have begun to train.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ray.cluster_utils import Cluster

from rayio.errors import RayioError
from rayio.reporter import Reporter
from rayio.session import Run, run
from scenarios import scenario


class Loser(Reporter):
    """Takes a node off the cluster when steps are under way."""

    def __init__(self, cluster: Cluster, node: Any) -> None:
        self.cluster, self.node = cluster, node

    def live(self, text: str) -> None:
        if self.node is not None and not text.startswith("0/"):
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None


def main(root: str, *, lose: bool) -> None:
    resources = {"num_cpus": 2, "object_store_memory": 100 << 20, "memory": 2 << 30}
    cluster = Cluster(initialize_head=True, head_node_args=resources)
    other = cluster.add_node(**resources)
    wanted = scenario(
        dataset__path="data", cluster__nodes=2, cluster__ranks_per_node=1, cluster__placement="spread",
        train__epochs=2000 if lose else 1,
    )  # fmt: skip
    told: dict[str, Any] = {}
    try:
        run(wanted, address=cluster.address, root=root, out="out", reporter=Loser(cluster, other if lose else None))
    except RayioError as error:
        told["error"] = str(error)
    left = Run.open(f"{root}/out")
    told["where"] = {actor["name"]: actor.get("ray_node") for actor in left.directory.info["actors"]}
    told |= {"ledger": left.result["ledger"], "nodes": len(left.directory.info["nodes"]), "exit": left.exit_code}
    sys.stdout.write(json.dumps(told | {"spans": len(left.directory.spans())}) + "\n")
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], lose="lose" in sys.argv[2:])
