"""Start a Ray cluster here whose autoscaler brings nodes, run a scenario whose readers ask for some, and print JSON.

The load is high until the readers that came have read, and low until their nodes have gone: where the machine is so
busy that nodes take longer than that, ranks are stopped meanwhile.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import ray
from fake_nodes import Nodes, patiently
from ray._private.node import Node
from ray._private.parameter import RayParams

from rayio.engines.ray.cluster.local_ray import UNHEARD, without
from rayio.errors import RayioError
from rayio.reporter import Reporter
from rayio.session import Run, run
from scenarios import scenario

HEAD = "f" * 51 + "00000"
MEMORY = 100 << 20
RANKS, STEPS = 2, 160
#: What `ray up` would run on nodes.
COMMANDS = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
#: Steps of all ranks together before which nodes must have come, and gone.
COME, GONE = 150, 300
WANTED: dict[str, Any] = {
    "cluster__ranks_per_node": RANKS,
    "cluster__reader_pool": {"nodes": 2, "slots": 1, "pending": 1, "deadline": "5 min"},
    "dataset__path": "data",
    "dataset__num_files": RANKS * STEPS,
    "dataset__sample_bytes": "150 kB",
    "train__sync": "none",
    "train__epochs": 1,
    "train__compute": {"kind": "ramp", "begin": "20 ms", "end": "300 ms", "steps": STEPS},
    "loader__batch_size": 1,
    "loader__decode": "150 ms",
    "loader__num_workers": {"min": 1, "max": 2, "every": "200 ms", "calm": "1 s"},
    "loader__queue": "in_rank",
}


def configuration(port: int) -> dict[str, Any]:
    """What `ray up` would be given: a head, and up to two nodes that have a slot for one reader each."""
    return {
        "cluster_name": "fake", "max_workers": 2, "upscaling_speed": 1.0, "idle_timeout_minutes": 0.05,
        "provider": {
            "type": "external", "module": f"{Nodes.__module__}.{Nodes.__name__}", "use_node_id_as_ip": True,
            "disable_node_updaters": True, "disable_launch_config_check": True, "launch_multiple": True,
            "head_node_id": HEAD, "gcs_address": f"127.0.0.1:{port}",
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
            "reader": {
                "resources": {"CPU": 1, "reader_slot": 1, "object_store_memory": MEMORY}, "node_config": {},
                "min_workers": 0, "max_workers": 2,
            },
        },
        "head_node_type": "ray.head.default", "auth": {}, "file_mounts": {}, "cluster_synced_files": [],
        "file_mounts_sync_continuously": False, "rsync_exclude": [], "rsync_filter": [],
        **{f"{whose}_commands": [] for whose in COMMANDS},
    }  # fmt: skip


class Cluster:
    """A head whose autoscaler brings and ends nodes; all its processes name its folder."""

    def __init__(self, *, is_scaled: bool = True) -> None:
        self.folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # a socket's path has room for no more
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        path = Path(self.folder, "cluster.json")
        path.write_text(json.dumps(configuration(port)))
        os.environ |= {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_enable_autoscaler_v2": "1", "RAY_FAKE_CLUSTER": "1"}
        os.environ |= {"RAY_CLOUD_INSTANCE_ID": HEAD, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD}
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])

        def start() -> Node:
            return Node(wanted(), head=True, shutdown_at_exit=False, spawn_reaper=False)

        def wanted() -> RayParams:
            return RayParams(
            num_cpus=2, object_store_memory=MEMORY, temp_dir=self.folder, include_dashboard=False, gcs_server_port=port,
            min_worker_port=0, max_worker_port=0, autoscaling_config=str(path) if is_scaled else None,
        )  # fmt: skip

        with without(UNHEARD):
            self.head = patiently(start, lambda: self.folder)
        self.address = self.head.gcs_address

    def end(self) -> None:
        """End every process of it."""
        ray.shutdown()
        self.head.kill_all_processes(check_alive=False, allow_graceful=False)
        for process in psutil.process_iter(["cmdline"]):
            if any(self.folder in word for word in process.info["cmdline"] or ()):
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Watcher(Reporter):
    """Notes which nodes there are, and has ranks wait for them."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        #: How many nodes there were when, by the driver's seconds; and what was said.
        self.nodes: list[tuple[float, int]] = []
        self.said: list[str] = []
        self.pids: list[int] = []
        self.is_stopped = False
        self.stops = 0

    def say(self, text: str) -> None:
        self.said.append(text)

    def live(self, text: str, share: float | None = None) -> None:
        number = sum(node["Alive"] for node in ray.nodes())
        if not self.nodes or self.nodes[-1][1] != number:
            self.nodes.append((time.monotonic() - self.began, number))
        steps, most = int(text.split("/")[0]), max(number for _, number in self.nodes)
        must_wait = (steps >= COME and most < 3) or (steps >= GONE and number > 1)
        if must_wait != self.is_stopped:
            self.is_stopped = must_wait
            self.stops += must_wait
            for pid in self.pids or self.found():
                os.kill(pid, signal.SIGSTOP if must_wait else signal.SIGCONT)

    def found(self) -> list[int]:
        ranks = [one for one in ray.util.list_named_actors(all_namespaces=True) if one["name"].startswith("rank-")]
        self.pids = [ray.get(ray.get_actor(**one).ready.remote())["pid"] for one in ranks]
        return self.pids


def main(root: str) -> None:
    cluster = Cluster()
    told: dict[str, Any] = {}
    watcher = Watcher()
    try:
        try:
            run(scenario(**WANTED), address=cluster.address, root=root, out="out", reporter=watcher)
        except RayioError as error:
            told["error"] = str(error)
            sys.stderr.write(f"{error}\n")
        left = Run.open(f"{root}/out")
        spans, info = left.spans(), left.directory.info
        told |= {
            "exit": left.exit_code,
            "ledger": left.result["ledger"],
            "scaling": left.result["scaling"],
            "trace": left.result["trace"],
            "notes": left.result["notes"],
            "seen": watcher.nodes,
            "stops": watcher.stops,
            "seconds": time.monotonic() - watcher.began,
            "delivered": sorted(spans[spans["name"] == "data_wait"]["link"].astype(int).tolist()),
            "where": {actor["name"]: [actor["node"], actor["ray_node"]] for actor in info["actors"] if "node" in actor},
            "read_on": sorted(set(spans[spans["name"] == "read"]["node"].tolist())),
            "pool": spans[spans["role"] == "pool"][["name", "node", "start_ns", "duration_ns"]].to_dict("records"),
            "first": spans[spans["name"] == "first_batch"][["rank", "start_ns", "duration_ns"]].to_dict("records"),
        }
    finally:
        cluster.end()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
