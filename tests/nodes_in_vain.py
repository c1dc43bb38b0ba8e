"""Start a Ray cluster here on which readers ask for more nodes than come, run a scenario, and print JSON.

``unknown``: the cluster's autoscaler has no kind of node with what they ask for. ``few``: there is no autoscaler, and
one node for two readers.
"""

from __future__ import annotations

import html
import json
import sys
from pathlib import Path
from typing import Any

import coming_nodes
import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

from rayio.errors import RayioError
from rayio.report.build import report
from rayio.report.text.summary import summary
from rayio.reporter import Reporter
from rayio.session import Run, run
from scenarios import scenario

RANKS, STEPS = 2, 120
#: Readers take 0.15 s for a batch, and ranks 20 ms: each wants a second reader from the beginning to the end.
WANTED: dict[str, Any] = coming_nodes.WANTED | {
    "cluster__ranks_per_node": RANKS,
    "dataset__num_files": RANKS * STEPS,
    "train__compute": "20 ms",
}
#: That a reader waits for a node.
SECONDS = 2
POOL: dict[str, Any] = {"nodes": 2, "slots": 1, "pending": 2, "deadline": f"{SECONDS} s"}
RESOURCES: dict[str, Any] = {"num_cpus": 2, "object_store_memory": coming_nodes.MEMORY, "memory": 2 << 30}


class FewNodes:
    """A head, and one node with a slot for one reader."""

    def __init__(self) -> None:
        self.cluster = Cluster(initialize_head=True, head_node_args=RESOURCES | {"include_dashboard": False})
        self.cluster.add_node(**RESOURCES, resources={"reader_slot": 1})
        self.address = self.cluster.address

    def end(self) -> None:
        """End every process of it."""
        ray.shutdown()
        self.cluster.shutdown()


def groups(state: str) -> list[str]:
    """The names of the placement groups that are in a state, but the run's own."""
    found = (group for group in placement_group_table().values() if group["state"] == state)
    return sorted(group["name"].rpartition("-reader-")[2] for group in found if "-reader-" in group["name"])


class Watcher(Reporter):
    """Notes what is said, and which readers ask."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.asking: list[list[str]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def live(self, text: str, share: float | None = None) -> None:
        asking = groups("PENDING")
        if not self.asking or self.asking[-1] != asking:
            self.asking.append(asking)


def main(root: str, story: str) -> None:
    cluster: Any = coming_nodes.Cluster() if story == "unknown" else FewNodes()
    pool = POOL | ({"resource": "nowhere"} if story == "unknown" else {})
    told: dict[str, Any] = {}
    watcher = Watcher()
    try:
        try:
            wanted = scenario(**WANTED | {"cluster__reader_pool": pool})
            run(wanted, address=cluster.address, root=root, out="out", reporter=watcher)
        except RayioError as error:
            told["error"] = str(error)
        left = Run.open(f"{root}/out")
        spans = left.spans()
        ray.init(cluster.address, log_to_driver=False)
        told |= {
            "exit": left.exit_code,
            "ledger": left.result["ledger"],
            "scaling": left.result["scaling"],
            "trace": left.result["trace"],
            "notes": left.result["notes"],
            "said": watcher.said,
            "asking": watcher.asking,
            "left": {state: groups(state) for state in ("PENDING", "CREATED", "RESCHEDULING")},
            "delivered": sorted(spans[spans["name"] == "data_wait"]["link"].astype(int).tolist()),
            "readers": sorted(set(spans[spans["name"] == "read"]["index"])),
            "summary": " ".join(summary(left.result).split()),
            "report": html.unescape(Path(report(left.address)).read_text()),
        }
    finally:
        cluster.end()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
