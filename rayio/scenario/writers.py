"""Kinds of ``checkpoint.writers``: the parts of a checkpoint, their files and the nodes of their writers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from rayio.kinds import CHECKPOINTS
from rayio.scenario.state import Part, State
from rayio.scenario.topology import Topology
from rayio.schema.choice import KindOf
from rayio.schema.fields import Section, whole

#: The most writers of a run: each is a role.
MAX_WRITERS = 1 << 16
#: The most files of a checkpoint.
MAX_FILES = 1 << 20


class Writers(Section):
    """The writers of a checkpoint, numbered from 0. By default they live on the nodes in turn.

    Each file of the state is cut into a part for every writer (``sizes``), unless a kind has other files.

    >>> sharded = load("unet3d-small", {"checkpoint.writers": "sharded"}).checkpoint.writers
    >>> four = Topology(nodes=2, ranks_per_node=2)
    >>> sharded.sizes(10, four), sharded.of_rank(2, four), sharded.node(2, four)
    ((3, 3, 2, 2), (2,), 1)
    """

    #: Whether ``train.parallelism.zero_stage`` matters to it.
    follows_zero: ClassVar[bool] = False
    #: Whether rank 0 sends a restored state to all others.
    is_broadcast: ClassVar[bool] = False
    kind: str

    def sizes(self, num_bytes: int, topology: Topology) -> tuple[int, ...]:
        """Return the bytes that each writer has of a file of the state of ``num_bytes``."""
        raise NotImplementedError

    def of_rank(self, rank: int, topology: Topology) -> Sequence[int]:
        """Return the writers that a rank sends its part of a checkpoint to; every writer has one such rank."""
        raise NotImplementedError

    def copies(self, topology: Topology) -> int | None:
        """Return the number of whole copies of the state in one checkpoint; None for parts that overlap."""
        return 1

    def node(self, writer: int, topology: Topology) -> int:
        """Return the node of a writer."""
        return writer % topology.nodes

    def file_name(self, writer: int) -> str:
        """Return the name of a writer's file in the folder of one checkpoint, after the name of the state's file."""
        return f"shard-{writer:05d}.bin"

    def files(self, writer: int, state: State, topology: Topology) -> tuple[Part, ...]:
        """Return the files of a writer in one checkpoint, in the order in which it writes them."""
        end = self.file_name(writer)
        parts = [(part, _sizes(self, part.num_bytes, topology)[writer]) for part in state.parts]
        return tuple(Part(f"{part.name}-{end}" if part.name else end, size, part.of) for part, size in parts if size)

    def loads(self, state: State, topology: Topology) -> tuple[int, ...]:
        """Return the bytes of each writer in one checkpoint."""
        each = [_sizes(self, part.num_bytes, topology) for part in state.parts]
        return each[0] if len(each) == 1 else tuple(map(sum, zip(*each, strict=True)))

    def contents(self, state: State, topology: Topology) -> dict[str, tuple[int, int]]:
        """Return the number of files of a checkpoint and their bytes, by what they hold."""
        contents: dict[str, tuple[int, int]] = {}
        for part in state.parts:
            sizes = _sizes(self, part.num_bytes, topology)
            number, nbytes = contents.get(part.of, (0, 0))
            contents[part.of] = number + sum(map(bool, sizes)), nbytes + sum(sizes)
        return contents

    def refusals(self, state: State, topology: Topology) -> Iterator[str]:
        """Yield a line for each contradiction with this state and these ranks."""
        yield from ()

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> Any:
        written = {key: value for key, value in handler(self).items() if key != "kind" and value is not None}
        return ({} if [*written] == [self.kind] else {"kind": self.kind}) | written if written else self.kind


@lru_cache(maxsize=16)
def _sizes(writers: Writers, num_bytes: int, topology: Topology) -> tuple[int, ...]:
    return writers.sizes(num_bytes, topology)


def shares(state_bytes: int, number: int) -> tuple[int, ...]:
    """Return the sizes of ``number`` parts of a state, which differ by at most a byte, the longer ones first."""
    share, left = divmod(state_bytes, number)
    return (share + 1,) * left + (share,) * (number - left)


class RankZero(Writers):
    """Rank 0 saves the whole state through one writer, and sends it to all ranks after a restore."""

    is_broadcast = True
    kind: Literal["rank_zero"] = "rank_zero"

    def sizes(self, num_bytes: int, topology: Topology) -> tuple[int, ...]:
        """Return one size: that of the whole file."""
        return (num_bytes,)

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

    def sizes(self, num_bytes: int, topology: Topology) -> tuple[int, ...]:
        """Return the size of the whole file for each rank."""
        return (num_bytes,) * topology.ranks

    def copies(self, topology: Topology) -> int:
        """Return the number of ranks."""
        return topology.ranks

    def file_name(self, writer: int) -> str:
        """Return a name with the rank."""
        return f"rank-{writer:05d}.bin"


class Sharded(BesideRanks):
    """Every rank saves its share of one state through its own writer, on its node."""

    kind: Literal["sharded"] = "sharded"

    def sizes(self, num_bytes: int, topology: Topology) -> tuple[int, ...]:
        """Return equal shares; the first may be one byte longer."""
        return shares(num_bytes, topology.ranks)

    def refusals(self, state: State, topology: Topology) -> Iterator[str]:
        """Refuse more ranks than bytes."""
        if topology.ranks > state.num_bytes:
            yield (
                f"checkpoint.writers=sharded: {topology.ranks} ranks are more than the {state.num_bytes} B of "
                "checkpoint.model"
            )


class Dedicated(Writers):
    """Rank 0 saves the state in equal shares through a number of dedicated writers."""

    kind: Literal["dedicated"] = "dedicated"
    dedicated: Annotated[int, whole(1, MAX_WRITERS)] = Field(description="Number of writers.")

    def sizes(self, num_bytes: int, topology: Topology) -> tuple[int, ...]:
        """Return equal shares; the first may be one byte longer."""
        return shares(num_bytes, self.dedicated)

    def of_rank(self, rank: int, topology: Topology) -> Sequence[int]:
        """Return all writers for rank 0, none for others."""
        return range(self.dedicated) if rank == 0 else ()

    def refusals(self, state: State, topology: Topology) -> Iterator[str]:
        """Refuse more writers than bytes."""
        if self.dedicated > state.num_bytes:
            yield (
                f"checkpoint.writers.dedicated={self.dedicated}: more writers than the {state.num_bytes} B of "
                "checkpoint.model"
            )


class PerNode(Writers):
    """The first rank of every node saves its node's share of one state, through a writer of the node."""

    kind: Literal["per_node"] = "per_node"

    def sizes(self, num_bytes: int, topology: Topology) -> tuple[int, ...]:
        """Return equal shares; the first may be one byte longer."""
        return shares(num_bytes, topology.nodes)

    def of_rank(self, rank: int, topology: Topology) -> Sequence[int]:
        """Return the node's writer for its first rank, none for others."""
        node = topology.node_of(rank)
        return (node,) if rank == topology.ranks_of(node)[0] else ()

    def file_name(self, writer: int) -> str:
        """Return a name with the node."""
        return f"node-{writer:05d}.bin"

    def refusals(self, state: State, topology: Topology) -> Iterator[str]:
        """Refuse more nodes than bytes."""
        if topology.nodes > state.num_bytes:
            yield (
                f"checkpoint.writers=per_node: {topology.nodes} nodes are more than the {state.num_bytes} B of "
                "checkpoint.model"
            )


class PerGroup(BesideRanks):
    """A rank of every data-parallel group, of the first replica, saves the group's share of one state."""

    kind: Literal["per_group"] = "per_group"

    def sizes(self, num_bytes: int, topology: Topology) -> tuple[int, ...]:
        """Return equal shares; the first may be one byte longer."""
        return shares(num_bytes, topology.parts)

    def of_rank(self, rank: int, topology: Topology) -> Sequence[int]:
        """Return the group's writer for its rank of the first replica, none for others."""
        return (rank,) if topology.replica_of(rank) == 0 else ()

    def file_name(self, writer: int) -> str:
        """Return a name with the group."""
        return f"group-{writer:05d}.bin"

    def refusals(self, state: State, topology: Topology) -> Iterator[str]:
        """Refuse more groups than bytes."""
        if topology.parts > state.num_bytes:
            yield (
                f"checkpoint.writers=per_group: {topology.parts} groups are more than the {state.num_bytes} B of "
                "checkpoint.model"
            )


class Parallel(BesideRanks):
    """Every rank saves its part of a transformer, as ``train.parallelism`` divides it, through its own writer."""

    follows_zero = True
    kind: Literal["parallel"] = "parallel"

    def copies(self, topology: Topology) -> None:
        """Return None: ranks that split a layer each have its norms."""

    def of_rank(self, rank: int, topology: Topology) -> Sequence[int]:
        """Return the rank's own writer; none without ZeRO for the replicas of what others save."""
        return (rank,) if topology.zero_stage > 0 or topology.replica_of(rank) == 0 else ()

    def files(self, writer: int, state: State, topology: Topology) -> tuple[Part, ...]:
        """Return the files of the rank's part of the model."""
        return state.saved_by(writer, topology)

    def loads(self, state: State, topology: Topology) -> tuple[int, ...]:
        """Return the bytes of each writer: equal for the tensors of a stage, and for replicas but the first."""
        first, others = (
            [sum(part.num_bytes for part in files) for files in some for _ in range(topology.tensor_parallel)]
            for some in self._of_stages(state, topology)
        )
        return (*first, *others * (topology.data_parallel - 1))

    def contents(self, state: State, topology: Topology) -> dict[str, tuple[int, int]]:
        """Return the number of files of a checkpoint and their bytes, by what they hold."""
        contents: dict[str, tuple[int, int]] = {}
        times = topology.tensor_parallel, topology.tensor_parallel * (topology.data_parallel - 1)
        for some, ranks in zip(self._of_stages(state, topology), times, strict=True):
            for part in (part for files in some for part in files):
                number, nbytes = contents.get(part.of, (0, 0))
                contents[part.of] = number + ranks, nbytes + ranks * part.num_bytes
        return contents

    def refusals(self, state: State, topology: Topology) -> Iterator[str]:
        """Refuse a state that has no such parts."""
        yield from state.undividable(topology)

    def _of_stages(self, state: State, topology: Topology) -> tuple[list[tuple[Part, ...]], list[tuple[Part, ...]]]:
        """Return the files of a rank of each pipeline stage: of the first replica, and of any other."""
        if [*state.undividable(topology)]:
            return [], []
        first = [state.saved_by(rank, topology) for rank in topology.stages_of(0)]
        if topology.data_parallel == 1 or not topology.zero_stage:
            return first, []
        return first, [state.saved_by(rank, topology) for rank in topology.stages_of(topology.parts)]


AnyWriters = Annotated[
    Writers, KindOf(CHECKPOINTS, "rank_zero, all_ranks, sharded, per_node, per_group, parallel or {dedicated: n}")
]
