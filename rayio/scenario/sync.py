"""Kinds of ``train.sync``: whether ranks wait for each other after a step, and the time of the all-reduce."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rayio.kinds import SYNCS
from rayio.schema.choice import KindOf
from rayio.schema.fields import Rate, Seconds, Section, quantity
from rayio.units import BYTES


class Sync(Section):
    """The synchronisation of ranks after a step."""

    #: Whether every step ends when the slowest rank's does.
    meets: ClassVar[bool] = True
    #: Whether ``train.parallelism`` matters to it.
    follows_parallelism: ClassVar[bool] = False
    kind: str

    def seconds(self, ranks: int) -> float:
        """Return the seconds of the all-reduce of ``ranks`` ranks once all are there."""
        return 0.0


class NoSync(Sync):
    """Ranks do not wait for each other."""

    meets = False
    kind: Literal["none"] = "none"


class BarrierSync(Sync):
    """Every step ends when the slowest rank's does."""

    kind: Literal["barrier"] = "barrier"


class AllReduce(Sync):
    """A barrier and then a ring all-reduce of ``bytes``."""

    kind: Literal["allreduce"] = "allreduce"
    bytes: Annotated[int, quantity(BYTES, integer=True)] = Field(description="Bytes of the gradients of one rank.")
    bandwidth: Rate = Field(description="Bytes per second of one link of the ring.")
    latency: Seconds = Field(0.0, description="Time per message.")

    def seconds(self, ranks: int) -> float:
        """Time of one all-reduce over a ring of n ranks: ``2(n-1)/n * bytes / bandwidth + 2(n-1) * latency``.

        Nothing for one rank. Sources: Thakur, Rabenseifner and Gropp, "Optimization of collective communication
        operations in MPICH" (IJHPCA 2005); Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
        workstations" (JPDC 2009).
        """
        if ranks < 2:
            return 0.0
        return 2 * (ranks - 1) / ranks * self.bytes / self.bandwidth + 2 * (ranks - 1) * self.latency


AnySync = Annotated[Sync, KindOf(SYNCS, "none, barrier or {kind: allreduce, bytes: ..., bandwidth: ..., latency: ...}")]
