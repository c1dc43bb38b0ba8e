"""``cluster.reader_pool``: nodes that come for readers and go with them."""

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
#: Readers that have room on one node.
MAX_SLOTS = 4096


def _resource(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z][\w.-]{0,62}", value):
        raise RefusedError("must be the name of a custom resource of Ray's: a letter, then letters, digits, _, . or -")
    if value in RAYS_OWN or value.startswith(OF_GROUPS):
        raise RefusedError("is a resource of Ray's own, which other nodes have too; name a custom one")
    return value


class ReaderPool(Section):
    """Nodes that come for the readers beyond ``loader.num_workers.min``, each of which takes a slot, and go after."""

    resource: Annotated[str, Reads(_resource, {"type": "string", "pattern": r"^[A-Za-z][\w.-]{0,62}$"})] = Field(
        "reader_slot",
        description="On Ray: the custom resource that these nodes have and no others; a reader asks for one of it.",
    )
    nodes: Annotated[int, whole(1, MAX_RANKS)] = Field(
        description="These nodes at most: readers for which they have no slot are not asked for."
    )
    slots: Annotated[int, whole(1, MAX_SLOTS)] = Field(1, description="Readers that a node has room for.")
    pending: Annotated[int, whole(1, MAX_SLOTS)] = Field(
        16, description="Readers that may wait for a node at a time; others are asked for once one of them has it."
    )
    deadline: Annotated[float, quantity(SECONDS, positive=True)] = Field(
        300.0,
        description="How long a reader waits for a node. Then its rank goes on with the readers that it has, and asks "
        "again after loader.num_workers.calm.",
    )
    start: Seconds = Field(
        60.0, description="What a node takes to come where nodes are modelled; on Ray it takes what it takes."
    )
    idle_timeout: Seconds = Field(
        60.0,
        description="How long a node without readers stays where nodes are modelled; on Ray its autoscaler decides, "
        "which `rayio k8s` tells it.",
    )

    def filled_by(self, readers: int) -> int:
        """The most nodes that are there at a time for so many readers: another comes only once all slots are taken."""
        return min(self.nodes, max(1, -(-readers // self.slots)))
