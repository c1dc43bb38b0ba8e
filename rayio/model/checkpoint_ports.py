"""The files of checkpoints, and the ports between ranks, their writers and those who count checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from rayio.model.ledger import Tally
from rayio.model.manifest import Link
from rayio.place import Where, checkpoint_place
from rayio.storage.base import Served

#: The writer that completes checkpoints.
COMPLETER = 0
NO_CHECKPOINT = Link(-1, -1)


class Shard(NamedTuple):
    """A file of a checkpoint, with its writer and parameters."""

    path: str
    num_bytes: int
    request_bytes: int
    fsync: bool
    writer: int
    #: Bytes after which the content of a file that is read repeats; 0 in one that is written.
    period: int = 0
    #: The run that wrote it, or writes it.
    run: str = ""
    #: The checkpoint that it is part of; a file of a stage has none.
    link: Link = NO_CHECKPOINT
    #: True if it is read from the burst tier.
    in_burst: bool = False

    def saved_at(self, at: Where) -> Where:
        """Return a rank's place with the epoch and step of the file's checkpoint.

        A rank with fewer steps saves it after its own last step.
        """
        place = checkpoint_place(self.path.rpartition("/")[0])
        return at if place is None else at._replace(epoch=place[0], step=place[1])


class Left(NamedTuple):
    """A rank's files of a checkpoint that a restore left in the burst tier; it may have none."""

    shards: Sequence[Shard]
    #: The number of the checkpoint in this run; -1 if another run wrote it.
    number: int
    #: True if the rank has to drain them.
    is_undrained: bool


class WriterPort(Protocol):
    """A rank's end of a checkpoint writer."""

    async def write(self, shard: Shard, at: Where) -> Served[None]:
        """Write a shard; it is durable on return."""

    async def read(self, shard: Shard, at: Where) -> Served[None]:
        """Read and verify a shard."""

    async def report(self, durable: Mapping[Link, Sequence[str]], at: Where, in_burst: bool = False) -> list[Link]:
        """Report durable files by checkpoint, to the writer that completes checkpoints; return complete ones.

        ``in_burst``: they are in the burst tier.
        """

    async def drain(self, shard: Shard, at: Where) -> Served[None]:
        """Copy a shard from the burst tier to storage; it is durable on return."""

    async def clear(self, kept: Collection[str], at: Where) -> None:
        """Remove the writer's files of all checkpoints but the ``kept`` ones from the burst tier."""


class Drained(Protocol):
    """A rank's part of the burst tier: ``rayio.model.draining.Drains``."""

    async def room(self, shards: Sequence[Shard], at: Where) -> None:
        """Wait until the tier has room for files."""

    async def room_behind(self, at: Where) -> None:
        """Wait until a checkpoint that is written in the background has its room."""

    async def make_room(self, shards: Sequence[Shard], at: Where) -> None:
        """Make room for files in the background."""

    def add(self, shards: Sequence[Shard], at: Where) -> None:
        """Start to drain files that are in the tier."""

    def passed(self, number: int, tally: Tally) -> None:
        """Report that the rank has passed a checkpoint, whose part is in the tier."""

    async def end(self, at: Where) -> None:
        """Wait until everything is drained."""

    def holds(self, folder: str) -> bool:
        """Return True if the rank's files of a checkpoint are in the tier."""

    async def begin(self, left: Sequence[Left], tally: Tally, at: Where) -> None:
        """Begin an attempt with nothing in the tier but the files that a restore left there."""


class Marking(Protocol):
    """A function that receives the number of a checkpoint that a rank has passed, and its consumption until then."""

    def __call__(self, number: int, tally: Tally | None, in_burst: bool = False, /) -> None:
        """Record it; ``in_burst``: the rank's part is in the burst tier. Without a tally it is there no more."""
