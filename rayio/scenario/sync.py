"""Kinds of ``train.sync``: whether ranks wait for each other after a step, and the time of the all-reduce."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rayio.kinds import SYNCS
from rayio.place import MAX_STEPS
from rayio.schema.choice import KindOf
from rayio.schema.fields import Rate, Reads, RefusedError, Seconds, Section, choice, quantity, whole
from rayio.units import BYTES


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise RefusedError("must be a number from 0 to 1, such as 0.8")
    return float(value)


Every = Annotated[int, whole(1, MAX_STEPS)]


class Sync(Section):
    """The synchronisation of ranks after a step."""

    #: Whether every step ends when the slowest rank's does.
    meets: ClassVar[bool] = True
    kind: str

    def seconds(self, ranks: int) -> float:
        """Return the seconds of the all-reduce of ``ranks`` ranks once all are there."""
        return 0.0

    def broadcast_seconds(self, ranks: int, num_bytes: int) -> float:
        """Return the seconds of sending a state of ``num_bytes`` from one rank to all, once all are there."""
        return 0.0


class NoSync(Sync):
    """Ranks do not wait for each other."""

    meets = False
    kind: Literal["none"] = "none"


class BarrierSync(Sync):
    """Every step, or every n-th, ends when the slowest rank's does."""

    kind: Literal["barrier"] = "barrier"
    every: Every = Field(1, description="Steps from one meeting to the next, as in local SGD.")


def ring(ranks: int, num_bytes: int, bandwidth: float, latency: float) -> float:
    """Return the seconds of a ring over n ranks: ``2(n-1)/n * bytes / bandwidth + 2(n-1) * latency``.

    Sources: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (IJHPCA
    2005); Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (JPDC 2009).
    """
    return 2 * (ranks - 1) / ranks * num_bytes / bandwidth + 2 * (ranks - 1) * latency


def tree(ranks: int, num_bytes: int, bandwidth: float, latency: float) -> float:
    """Return the seconds of two binary trees over n ranks: ``2 * bytes / bandwidth + 2 * ceil(log2 n) * latency``.

    The data goes up and down once, in pieces that follow each other. Sources: Sanders, Speck and Träff, "Two-tree
    algorithms for full bandwidth broadcast, reduction and scan" (Parallel Computing 2009); the model by which NCCL
    chooses between ring and tree (``src/graph/tuning.cc``, ``ncclTopoTuneModel``).
    """
    return 2 * num_bytes / bandwidth + 2 * math.ceil(math.log2(ranks)) * latency


#: All-reduce algorithms: seconds of ranks, bytes, bandwidth and latency.
ALGORITHMS: dict[str, Callable[[int, int, float, float], float]] = {"ring": ring, "tree": tree}


class AllReduce(Sync):
    """A barrier and then an all-reduce of ``bytes`` over the ranks that have the same part of the model.

    Without ``train.parallelism`` these are all ranks.
    """

    kind: Literal["allreduce"] = "allreduce"
    bytes: Annotated[int, quantity(BYTES, integer=True)] = Field(description="Bytes of the gradients of one rank.")
    bandwidth: Rate = Field(description="Bytes per second of one link between ranks.")
    latency: Seconds = Field(0.0, description="Time per message.")
    algorithm: Annotated[Literal["ring", "tree"], choice(*ALGORITHMS)] = Field(
        "ring", description="How the bytes travel: around a ring, or up and down two binary trees."
    )
    overlap: Annotated[float, Reads(_share, {"type": "number", "minimum": 0, "maximum": 1})] = Field(
        0.0, description="Share of a step's mean compute time behind which the all-reduce can hide, 0 to 1."
    )
    every: Every = Field(1, description="Steps from one all-reduce to the next, as in local SGD.")

    def seconds(self, ranks: int) -> float:
        """Return the seconds of one all-reduce over n ranks: nothing for one rank, see :func:`ring` and :func:`tree`.

        Compute hides up to ``overlap`` of its mean time: gradients are reduced while others are computed (Li et al.,
        "PyTorch Distributed: Experiences on accelerating data parallel training", VLDB 2020).
        """
        if ranks < 2:
            return 0.0
        return ALGORITHMS[self.algorithm](ranks, self.bytes, self.bandwidth, self.latency)

    def broadcast_seconds(self, ranks: int, num_bytes: int) -> float:
        """Return the seconds of a broadcast over n ranks: ``bytes / bandwidth``, and ``latency`` for each hop.

        The state goes in pieces that follow each other, from rank to rank (n - 1 hops) or down two binary trees
        (``ceil(log2 n)``), so its bytes pass each link once. Sources: nccl-tests (``doc/PERFORMANCE.md``: a broadcast
        takes bytes / bandwidth); Sanders, Speck and Träff (see :func:`tree`).
        """
        if ranks < 2:
            return 0.0
        hops = ranks - 1 if self.algorithm == "ring" else math.ceil(math.log2(ranks))
        return num_bytes / self.bandwidth + hops * self.latency

    def idle(self) -> Iterator[str]:
        """Name gradients without bytes."""
        if not self.bytes and not self.latency:
            yield "train.sync.bytes=0: the all-reduce takes no time, so ranks only wait for each other"


AnySync = Annotated[Sync, KindOf(SYNCS, "none, barrier or {kind: allreduce, bytes: ..., bandwidth: ..., latency: ...}")]
