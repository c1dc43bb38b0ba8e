"""``checkpoint.burst``: a fast tier that checkpoints are written to first, and drained from behind training.

Examples are an NVMe drive in each node (SCR, FTI), and a burst buffer that all nodes share (DataWarp).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from rayio.kinds import STORAGE_MODELS
from rayio.scenario.address import Path
from rayio.scenario.storage import UNKNOWN, AnyModel, StorageParameters
from rayio.schema.fields import Bytes, Section, quantity
from rayio.units import BYTES, RATE, format_bytes

if TYPE_CHECKING:
    from rayio.scenario.topology import Topology
    from rayio.scenario.writers import Writers


class Burst(Section):
    """A fast tier that checkpoints are written to first. Writers copy them to checkpoint.path in the background."""

    path: Path = Field(description="Folder of the tier, apart from checkpoint.path. Nodes may each have their own.")
    model: AnyModel = Field(
        "nvme",
        description="The tier as a modelled storage system, like storage.model. Its scope also says who loses it, on "
        "real storage too: with node, each node has a tier, which is lost with the node; with cluster, all share one.",
    )
    capacity: Bytes = Field(
        description="Bytes of checkpoints that fit in the tier: of each node, or of all with scope cluster. Without "
        "room a save waits until old checkpoints are drained."
    )
    drain_bandwidth: Annotated[float | None, quantity(RATE, positive=True, or_none=True)] = Field(
        None, description="Most bytes per second at which one writer drains; none is as fast as both sides allow."
    )

    @property
    def scope(self) -> Literal["node", "cluster"]:
        """The part of the cluster that shares a tier."""
        model = self.model
        chosen: Literal["node", "cluster"] = (
            model.scope if isinstance(model, StorageParameters) else STORAGE_MODELS[model].scope
        )
        return chosen

    def rooms(self, sizes: tuple[int, ...], writers: Writers, topology: Topology) -> Fraction:
        """Return how many checkpoints fit; ``sizes`` are the bytes of each writer in one."""
        by_node = [0] * topology.nodes
        for writer, size in enumerate(sizes):
            by_node[writers.node(writer, topology) if self.scope == "node" else 0] += size
        return Fraction(self.capacity, max(1, *by_node))

    def contradictions(self) -> Iterator[str]:
        """Refuse a model without numbers, or with parts that the tier does not model."""
        model = self.model
        if model == UNKNOWN:
            yield "checkpoint.burst.model=unknown: nobody described it; give the name of a preset, or its parameters"
        elif (model if isinstance(model, StorageParameters) else STORAGE_MODELS[model]).servers is not None:
            named = "servers" if isinstance(model, StorageParameters) else model
            yield f"not yet: checkpoint.burst.model={named}, which stripes files over servers; use one without servers"

    def refusals(self, sizes: tuple[int, ...], writers: Writers, topology: Topology) -> Iterator[str]:
        """Refuse a tier that is too small for one checkpoint."""
        if sizes and (rooms := self.rooms(sizes, writers, topology)) < 1:
            where = "on the node with the most" if self.scope == "node" and topology.nodes > 1 else "of all writers"
            yield (
                f"checkpoint.burst.capacity={BYTES.exact(self.capacity)}: one checkpoint has "
                f"{format_bytes(float(self.capacity / rooms))} {where}; give at least that, or twice that, so that a "
                "drain overlaps with the next save"
            )
