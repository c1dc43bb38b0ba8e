"""``cluster.reader_pool``: nodes that come and go with workers."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field

from rayio.place import MAX_RANKS
from rayio.schema.fields import Reads, RefusedError, Seconds, Section, quantity, whole
from rayio.units import SECONDS

#: Names of Ray's own resources, and of its placement groups'.
RAYS_OWN = ("CPU", "GPU", "TPU", "HPU", "NPU", "neuron_cores", "memory", "object_store_memory", "bundle")
OF_GROUPS = "bundle_group"
#: The most workers of one node.
MAX_SLOTS = 4096


def _resource(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z][\w.-]{0,62}", value):
        raise RefusedError("must be the name of a custom resource of Ray's: a letter, then letters, digits, _, . or -")
    if value in RAYS_OWN or value.startswith(OF_GROUPS):
        raise RefusedError("is a resource of Ray's own, which other nodes have too; name a custom one")
    return value


class ReaderPool(Section):
    """Nodes that come and go with the workers beyond ``loader.num_workers.min``; each worker takes a slot."""

    resource: Annotated[str, Reads(_resource, {"type": "string", "pattern": r"^[A-Za-z][\w.-]{0,62}$"})] = Field(
        "reader_slot",
        description="On Ray: the custom resource that only these nodes have; a worker takes one of it.",
    )
    nodes: Annotated[int, whole(1, MAX_RANKS)] = Field(
        description="The most nodes; workers without a slot on them are not started."
    )
    slots: Annotated[int, whole(1, MAX_SLOTS)] = Field(1, description="The most workers of a node.")
    pending: Annotated[int, whole(1, MAX_SLOTS)] = Field(
        16, description="The most workers that wait for a node at a time; others wait until one of them has it."
    )
    deadline: Annotated[float, quantity(SECONDS, positive=True)] = Field(
        300.0,
        description="Time that a worker waits for a node. Then its rank goes on with fewer workers, and retries "
        "after loader.num_workers.calm.",
    )
    start: Seconds = Field(60.0, description="Start time of a modelled node; on Ray, nodes take their real time.")
    idle_timeout: Seconds = Field(
        60.0,
        description="Time after which a modelled node without workers goes; on Ray its autoscaler decides, "
        "with the value from `rayio k8s`.",
    )

    def filled_by(self, readers: int) -> int:
        """Return the most nodes for ``readers`` workers: another node comes only if all slots are taken."""
        return min(self.nodes, max(1, -(-readers // self.slots)))
