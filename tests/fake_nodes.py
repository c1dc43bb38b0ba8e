"""Ray's provider of nodes that are only pretended, for a busy machine; Ray's autoscaler imports it by name.

Ray's node manager ends itself where its helpers have not started within 15 s: then another one is started.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import ray._private.ray_constants as constants
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider

constants.ENABLE_RAY_CLUSTER = False  # nodes have the address of the loopback interface
#: How often a node is tried to start.
TRIES = 8


def patiently(start: Callable[[], Any], mark: Callable[[], str]) -> Any:
    """Start a node, again where that failed; ``mark`` is a word that the commands of its processes have then."""
    for _ in range(TRIES - 1):
        try:
            return start()
        except Exception:
            for process in psutil.process_iter(["cmdline"]):
                if any(mark() in word for word in process.info["cmdline"] or ()):
                    process.kill()
    return start()


class Nodes(FakeMultiNodeProvider):  # type: ignore[misc]
    """Nodes that are processes of this machine."""

    def _create_node_with_resources_and_labels(self, *arguments: Any) -> None:
        start = super()._create_node_with_resources_and_labels
        patiently(lambda: start(*arguments), lambda: "f" * 51 + str(self._next_node_id).zfill(5))
