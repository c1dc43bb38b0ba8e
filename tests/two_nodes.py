"""Start a Ray cluster of two nodes here, run a scenario spread over them, and print what happened as JSON.

The other node has a clock of its own, as another host would: elsewhere, and two percent fast. With ``lose`` as
second argument it is lost once ranks have begun to train.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from rayio.errors import RayioError
from rayio.reporter import SILENT, Reporter
from rayio.session import Run, run
from scenarios import scenario

#: Python runs this first in every process of the other node.
ELSEWHERE = """
import pathlib, time
read_text, perf_counter_ns = pathlib.Path.read_text, time.perf_counter_ns
pathlib.Path.read_text = lambda path, *more, **options: (
    "elsewhere" if path.name == "boot_id" else read_text(path, *more, **options)
)
time.perf_counter_ns = lambda: int(perf_counter_ns() * 1.02) + 7 * 10**15
"""


class Loser(Reporter):
    """Takes a node off the cluster when steps are under way."""

    def __init__(self, cluster: Cluster, node: Any) -> None:
        self.cluster, self.node = cluster, node

    def live(self, text: str, share: float | None = None) -> None:
        if self.node is not None and not text.startswith("0/"):
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None


def main(root: str, *, lose: bool) -> None:
    resources = {"num_cpus": 2, "object_store_memory": 100 << 20, "memory": 2 << 30}
    cluster = Cluster(initialize_head=True, head_node_args=resources)
    elsewhere = Path(root) / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "sitecustomize.py").write_text(ELSEWHERE)
    path = os.pathsep.join([str(elsewhere), os.environ["PYTHONPATH"]])
    other = cluster.add_node(**resources, env_vars={"PYTHONPATH": path})
    wanted = scenario(
        dataset__path="data", cluster__nodes=2, cluster__ranks_per_node=1, cluster__placement="spread",
        train__epochs=2000 if lose else 4, train__compute="100 ms",
    )  # fmt: skip
    told: dict[str, Any] = {}
    reporter = Loser(cluster, other) if lose else SILENT
    try:
        run(wanted, address=cluster.address, root=root, out="out", reporter=reporter)
    except RayioError as error:
        told["error"] = str(error)
    left = Run.open(f"{root}/out")
    spans, info = left.spans(), left.directory.info
    told |= {
        "exit": left.exit_code,
        "ledger": left.result["ledger"],
        "trace": left.result["trace"],
        "where": {actor["name"]: actor.get("ray_node") for actor in info["actors"]},
        "nodes": len(info["nodes"]),
        "clocks": info["clocks"],
        "notes": left.result["notes"],
        "began": dict(
            spans[(spans["name"] == "compute") & (spans["step"] == 0)][["rank", "start_ns"]].to_numpy().tolist()
        ),
    }
    sys.stdout.write(json.dumps(told) + "\n")
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], lose="lose" in sys.argv[2:])
