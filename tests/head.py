"""A Ray cluster of one node with its dashboard, until standard input ends; prints its address, and Ray's folder."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray._private.parameter import RayParams

#: Initializes Ray's parameters.
INITIALIZE = RayParams.__init__


def _on_a_free_port(self: RayParams, *arguments: Any, **options: Any) -> None:
    """Have the agent that starts jobs listen where there is room: another Ray of this machine may hold its port."""
    INITIALIZE(self, *arguments, **options)
    self.dashboard_agent_listen_port = 0


def main() -> None:
    RayParams.__init__ = _on_a_free_port
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # a socket's path has room for no more
    context = ray.init(
        address="local", include_dashboard=True, dashboard_host="127.0.0.1", dashboard_port=0, num_cpus=4,
        object_store_memory=100 << 20, log_to_driver=False, logging_level="ERROR", _temp_dir=temporary,
    )  # fmt: skip
    # as `ray start` does: Ray looks there for the cluster that a job belongs to, or takes any of the machine
    Path(temporary, "ray_current_cluster").write_text(ray.get_runtime_context().gcs_address)
    sys.stdout.write(f"http://{context.dashboard_url} {temporary}\n")
    sys.stdout.flush()
    sys.stdin.read()
    ray.shutdown()
    shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    main()
