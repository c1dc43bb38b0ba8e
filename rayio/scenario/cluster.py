"""The section ``cluster``: where the roles live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from rayio.place import MAX_RANKS
from rayio.scenario.fields import Section, choice, quantity, whole
from rayio.units import SECONDS, format_seconds

#: Bounds of ``stall_deadline``, in seconds: silences are looked for a few times within it.
MIN_STALL_SECONDS, MAX_STALL_SECONDS = 1.0, 720 * 3600.0


class Cluster(Section):
    """Where the roles live."""

    nodes: Annotated[int, whole(1, MAX_RANKS)] = Field(
        1, description="Machines of the run. On one machine more nodes are only pretended."
    )
    ranks_per_node: Annotated[int, whole(1, MAX_RANKS)] = Field(
        1, description="Trainer ranks (accelerators) on each node."
    )
    cores: Annotated[int | None, whole(1, 1 << 20, or_none=True)] = Field(
        None,
        description="Processor cores of each node on the virtual clock, which all roles of the node share for the work "
        "that costs.cpu says; none is as many as there is work. A real run has those of its machines.",
    )
    roles_per_actor: Annotated[int | Literal["auto"], whole(1, MAX_RANKS, or_word="auto")] = Field(
        "auto",
        description="Roles of one kind on one node that share an actor; the reader threads of a rank count as one.",
    )
    placement: Annotated[
        Literal["colocated", "spread"], choice("colocated", "spread", later=("dedicated_readers",))
    ] = Field("colocated", description="Whether readers live beside their rank, or in turn on all nodes.")
    transport: Annotated[Literal["auto", "ray"], choice("auto", "ray")] = Field(
        "auto",
        description="How batches and what is said of them travel between actors on Ray: over sockets and shared memory "
        "where both are on one Ray node, else as Ray's calls and objects; or always as Ray's.",
    )
    start_deadline: Annotated[float, quantity(SECONDS, positive=True)] = Field(
        120.0, description="Time within which every actor must have started."
    )
    stall_deadline: Annotated[float, quantity(SECONDS, positive=True, maximum=MAX_STALL_SECONDS)] = Field(
        600.0,
        description="Time for which a rank may wait without a sign of whom it waits for; then the run ends, and says "
        "who waits for whom. From 1 s to 720 h.",
    )

    def contradictions(self) -> Iterator[str]:
        """A deadline too short to look for silences within it."""
        if self.stall_deadline < MIN_STALL_SECONDS:
            yield f"cluster.stall_deadline={format_seconds(self.stall_deadline)}: must be at least 1 s"

    @property
    def world_size(self) -> int:
        """Ranks of the whole run."""
        return self.nodes * self.ranks_per_node
