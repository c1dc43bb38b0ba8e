"""Start a Ray cluster of two nodes here, kill one while a run trains on both, and print what happened as JSON.

Stories: ``left`` goes on with the node that is left, ``back`` waits for a node that comes back.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import ray
from four_nodes import RESOURCES, patiently
from ray.cluster_utils import Cluster

from rayio.reporter import Reporter
from rayio.session import run
from scenarios import scenario

#: Seconds for which a node that comes back is away, and the longest wait for it.
AWAY_SECONDS, REJOIN_SECONDS = 3.0, 120.0
EPOCHS, STEPS = 20, 12


class Loser(Reporter):
    """Kills a node, with all of its processes, once a checkpoint is complete; perhaps it comes back."""

    def __init__(self, cluster: Cluster, node: Any, *, comes_back: bool) -> None:
        self.cluster, self.node, self.comes_back = cluster, node, comes_back
        self.killed_ns = 0
        self.said: list[str] = []
        self.is_over = threading.Event()

    def say(self, text: str) -> None:
        self.said.append(text)

    def live(self, text: str, share: float | None = None) -> None:
        if self.killed_ns or int(text.split("/")[0]) < 2 * 20:
            return
        self.killed_ns = time.time_ns()
        self.cluster.remove_node(self.node, allow_graceful=False)
        if self.comes_back:
            threading.Thread(target=self._come_back).start()

    def _come_back(self) -> None:
        """Start a node again; its processes end with the thread that started them."""
        time.sleep(AWAY_SECONDS)
        self.cluster.add_node(**RESOURCES)
        self.is_over.wait()


def main(root: str, names: list[str]) -> None:
    ray._private.services.get_node = patiently(ray._private.services.get_node)
    ray._private.utils.set_sigterm_handler = lambda handler: None  # a node comes back from another thread
    told: dict[str, Any] = {}
    for name in names or ("left", "back"):
        cluster = Cluster(initialize_head=True, head_node_args=RESOURCES)
        loser = Loser(cluster, cluster.add_node(**RESOURCES), comes_back=name == "back")
        wanted = scenario(
            dataset__path="data", cluster__nodes=2, cluster__ranks_per_node=1, loader__queue="in_rank",
            loader__num_workers=1, train__epochs=EPOCHS, train__compute="100 ms",
            checkpoint={"every": {"steps": 4}, "path": f"{name}-ck", "model": {"bytes": "5 KB"}},
            failures={"policy": "from_checkpoint", "rejoin": REJOIN_SECONDS if name == "back" else 0},
        )  # fmt: skip
        try:
            left = run(wanted, address=cluster.address, root=root, out=name, reporter=loser)
        finally:
            loser.is_over.set()
        spans, result = left.spans(), left.result
        again = spans[(spans["name"] == "compute") & (spans["attempt"] == 1)]["start_ns"].min()
        assert result.failures is not None
        told[name] = {
            "exit": left.exit_code,
            "ledger": result.as_json()["ledger"],
            "causes": [one.cause for one in result.failures.attempts],
            "from_checkpoint": [one.is_from_checkpoint for one in result.failures.attempts],
            "nodes": len({*left.directory.info["placement"]["ray_node_of"].values()}),
            "seconds": (again - loser.killed_ns) / 1e9,
            "trace": [result.trace.recorded, result.trace.stored] if result.trace is not None else None,
            "notes": list(result.notes),
            "said": loser.said,
        }
        ray.shutdown()
        cluster.shutdown()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
