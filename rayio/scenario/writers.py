"""Kinds of ``checkpoint.writers``: the parts of a checkpoint, their files and the nodes of their writers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from rayio.kinds import CHECKPOINTS
from rayio.scenario.topology import Topology
from rayio.schema.choice import KindOf
from rayio.schema.fields import Section, whole

#: The most writers of a run: each is a role.
MAX_WRITERS = 1 << 16


class Writers(Section):
    """The writers of a checkpoint, numbered from 0: one file each. By default they live on the nodes in turn.

    >>> sharded = load("unet3d-small", {"checkpoint.writers": "sharded"}).checkpoint.writers
    >>> four = Topology(nodes=2, ranks_per_node=2)
    >>> sharded.sizes(10, four), sharded.of_rank(2, four), sharded.node(2, four)
    ((3, 3, 2, 2), (2,), 1)
    """

    #: Whether ``train.parallelism`` matters to it.
    follows_parallelism: ClassVar[bool] = False
    kind: str

    def sizes(self, state_bytes: int, topology: Topology) -> tuple[int, ...]:
        """Return the bytes of each writer in one checkpoint of a state of ``state_bytes``."""
        raise NotImplementedError

    def of_rank(self, rank: int, topology: Topology) -> Sequence[int]:
        """Return the writers that a rank sends its part of a checkpoint to; every writer has one such rank."""
        raise NotImplementedError

    def copies(self, topology: Topology) -> int:
        """Return the number of copies of the state in one checkpoint: the sum of its files' sizes."""
        return 1

    def node(self, writer: int, topology: Topology) -> int:
        """Return the node of a writer."""
        return writer % topology.nodes

    def file_name(self, writer: int) -> str:
        """Return the name of a writer's file in the folder of one checkpoint."""
        return f"shard-{writer:05d}.bin"

    def refusals(self, state_bytes: int, topology: Topology) -> Iterator[str]:
        """Yield a line for each contradiction with a state of this size and these ranks."""
        yield from ()

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> Any:
        written = {key: value for key, value in handler(self).items() if key != "kind" and value is not None}
        return ({} if [*written] == [self.kind] else {"kind": self.kind}) | written if written else self.kind


def shares(state_bytes: int, number: int) -> tuple[int, ...]:
    """Return the sizes of ``number`` parts of a state, which differ by at most a byte, the longer ones first."""
    share, left = divmod(state_bytes, number)
    return (share + 1,) * left + (share,) * (number - left)


class RankZero(Writers):
    """Rank 0 saves the whole state through one writer."""

    kind: Literal["rank_zero"] = "rank_zero"

    def sizes(self, state_bytes: int, topology: Topology) -> tuple[int, ...]:
        """Return one size: that of the whole state."""
        return (state_bytes,)

    def of_rank(self, rank: int, topology: Topology) -> Sequence[int]:
        """Return writer 0 for rank 0, none for others."""
        return (0,) if rank == 0 else ()


class BesideRanks(Writers):
    """A writer for every rank, on its node."""

    def of_rank(self, rank: int, topology: Topology) -> Sequence[int]:
        """Return the rank's own writer."""
        return (rank,)

    def node(self, writer: int, topology: Topology) -> int:
        """Return the node of its rank."""
        return topology.node_of(writer)


class AllRanks(BesideRanks):
    """Every rank saves a whole copy through its own writer, on its node."""

    kind: Literal["all_ranks"] = "all_ranks"

    def sizes(self, state_bytes: int, topology: Topology) -> tuple[int, ...]:
        """Return the size of the whole state for each rank."""
        return (state_bytes,) * topology.ranks

    def copies(self, topology: Topology) -> int:
        """Return the number of ranks."""
        return topology.ranks

    def file_name(self, writer: int) -> str:
        """Return a name with the rank."""
        return f"rank-{writer:05d}.bin"


class Sharded(BesideRanks):
    """Every rank saves its share of one state through its own writer, on its node."""

    kind: Literal["sharded"] = "sharded"

    def sizes(self, state_bytes: int, topology: Topology) -> tuple[int, ...]:
        """Return equal shares; the first may be one byte longer."""
        return shares(state_bytes, topology.ranks)

    def refusals(self, state_bytes: int, topology: Topology) -> Iterator[str]:
        """Refuse more ranks than bytes."""
        if topology.ranks > state_bytes:
            yield (
                f"checkpoint.writers=sharded: {topology.ranks} ranks are more than the {state_bytes} B of "
                "checkpoint.model.bytes"
            )


class Dedicated(Writers):
    """Rank 0 saves the state in equal shares through a number of dedicated writers."""

    kind: Literal["dedicated"] = "dedicated"
    dedicated: Annotated[int, whole(1, MAX_WRITERS)] = Field(description="Number of writers.")

    def sizes(self, state_bytes: int, topology: Topology) -> tuple[int, ...]:
        """Return equal shares; the first may be one byte longer."""
        return shares(state_bytes, self.dedicated)

    def of_rank(self, rank: int, topology: Topology) -> Sequence[int]:
        """Return all writers for rank 0, none for others."""
        return range(self.dedicated) if rank == 0 else ()

    def refusals(self, state_bytes: int, topology: Topology) -> Iterator[str]:
        """Refuse more writers than bytes."""
        if self.dedicated > state_bytes:
            yield (
                f"checkpoint.writers.dedicated={self.dedicated}: more writers than the {state_bytes} B of "
                "checkpoint.model.bytes"
            )


AnyWriters = Annotated[Writers, KindOf(CHECKPOINTS, "rank_zero, all_ranks, sharded or {dedicated: n}")]
