"""Kinds of ``checkpoint.writers``: who saves which part of a checkpoint, as how many files, and on which node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from rayio.kinds import CHECKPOINTS
from rayio.scenario.topology import Topology
from rayio.schema.choice import KindOf
from rayio.schema.fields import Section, whole

#: Writers of a run: each is a role.
MAX_WRITERS = 1 << 16


class Writers(Section):
    """The writers of a checkpoint, numbered from 0: one file each. By default they live on the nodes in turn.

    >>> sharded = load("unet3d-small", {"checkpoint.writers": "sharded"}).checkpoint.writers
    >>> four = Topology(nodes=2, ranks_per_node=2)
    >>> sharded.sizes(10, four), sharded.of_rank(2, four), sharded.node(2, four)
    ((3, 3, 2, 2), (2,), 1)
    """

    kind: str

    def sizes(self, state_bytes: int, topology: Topology) -> tuple[int, ...]:
        """Bytes that each writer writes in one checkpoint of a state of ``state_bytes``."""
        raise NotImplementedError

    def of_rank(self, rank: int, topology: Topology) -> Sequence[int]:
        """Numbers of the writers that a rank sends its part of a checkpoint to; every writer has one such rank."""
        raise NotImplementedError

    def copies(self, topology: Topology) -> int:
        """How many copies of the state one checkpoint has: the sizes of its files add up to so many."""
        return 1

    def node(self, writer: int, topology: Topology) -> int:
        """Node that a writer lives on."""
        return writer % topology.nodes

    def file_name(self, writer: int) -> str:
        """Name of the file that a writer writes, within the folder of one checkpoint."""
        return f"shard-{writer:05d}.bin"

    def refusals(self, state_bytes: int, topology: Topology) -> Iterator[str]:
        """What cannot be with a state of this size and these ranks: a line each."""
        yield from ()

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> Any:
        said = {key: value for key, value in handler(self).items() if key != "kind" and value is not None}
        return ({} if [*said] == [self.kind] else {"kind": self.kind}) | said if said else self.kind


def shares(state_bytes: int, number: int) -> tuple[int, ...]:
    """Cut a state into a number of parts that differ by at most a byte, the longer ones first."""
    share, left = divmod(state_bytes, number)
    return (share + 1,) * left + (share,) * (number - left)


class RankZero(Writers):
    """Rank 0 saves the whole state through one writer."""

    kind: Literal["rank_zero"] = "rank_zero"

    def sizes(self, state_bytes: int, topology: Topology) -> tuple[int, ...]:
        """One writer, which has all."""
        return (state_bytes,)

    def of_rank(self, rank: int, topology: Topology) -> Sequence[int]:
        """Rank 0 alone has one."""
        return (0,) if rank == 0 else ()


class BesideRanks(Writers):
    """A writer beside every rank, for it alone."""

    def of_rank(self, rank: int, topology: Topology) -> Sequence[int]:
        """Its own."""
        return (rank,)

    def node(self, writer: int, topology: Topology) -> int:
        """Beside its rank."""
        return topology.node_of(writer)


class AllRanks(BesideRanks):
    """Every rank saves a whole copy through a writer of its own, beside it."""

    kind: Literal["all_ranks"] = "all_ranks"

    def sizes(self, state_bytes: int, topology: Topology) -> tuple[int, ...]:
        """A whole copy each."""
        return (state_bytes,) * topology.ranks

    def copies(self, topology: Topology) -> int:
        """One of every rank."""
        return topology.ranks

    def file_name(self, writer: int) -> str:
        """Named by the rank."""
        return f"rank-{writer:05d}.bin"


class Sharded(BesideRanks):
    """Every rank saves its share of one state through a writer of its own, beside it."""

    kind: Literal["sharded"] = "sharded"

    def sizes(self, state_bytes: int, topology: Topology) -> tuple[int, ...]:
        """Equal shares; of unequal ones the first are one byte longer."""
        return shares(state_bytes, topology.ranks)

    def refusals(self, state_bytes: int, topology: Topology) -> Iterator[str]:
        """More ranks than bytes."""
        if topology.ranks > state_bytes:
            yield (
                f"checkpoint.writers=sharded: {topology.ranks} ranks are more than the {state_bytes} B of "
                "checkpoint.model.bytes"
            )


class Dedicated(Writers):
    """A number of writers of their own, each with its share of the state, which rank 0 has cut."""

    kind: Literal["dedicated"] = "dedicated"
    dedicated: Annotated[int, whole(1, MAX_WRITERS)] = Field(description="Number of writers.")

    def sizes(self, state_bytes: int, topology: Topology) -> tuple[int, ...]:
        """Equal shares; of unequal ones the first are one byte longer."""
        return shares(state_bytes, self.dedicated)

    def of_rank(self, rank: int, topology: Topology) -> Sequence[int]:
        """Rank 0 has all."""
        return range(self.dedicated) if rank == 0 else ()

    def refusals(self, state_bytes: int, topology: Topology) -> Iterator[str]:
        """More writers than bytes."""
        if self.dedicated > state_bytes:
            yield (
                f"checkpoint.writers.dedicated={self.dedicated}: more writers than the {state_bytes} B of "
                "checkpoint.model.bytes"
            )


AnyWriters = Annotated[Writers, KindOf(CHECKPOINTS, "rank_zero, all_ranks, sharded or {dedicated: n}")]
