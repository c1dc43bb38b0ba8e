"""Checkpoints: when they are due, which rank saves which part, and its bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import BinaryIO

from rayio.errors import ScenarioError
from rayio.kinds import SAVERS
from rayio.model.burst import IN_PIECES, BurstTier
from rayio.model.checkpoint_ports import Left
from rayio.model.env import COMPLETER, Shard
from rayio.model.manifest import Identity, Link, Manifest, Restored
from rayio.model.savers import Saver
from rayio.model.stamp import Stamp
from rayio.place import Where, checkpoint_folder
from rayio.scenario.checkpoint import Phases
from rayio.scenario.incremental import Incremental, changed
from rayio.scenario.schedule import Schedule
from rayio.scenario.state import State
from rayio.scenario.topology import Topology
from rayio.scenario.writers import Writers
from rayio.storage.model import Behind, DeviceSpec
from rayio.storage.real import Filled
from rayio.units import format_bytes, format_excess


@dataclass(frozen=True)
class Checkpointing:
    """The checkpoints of a run, computable by any rank. The kind of writers assigns the shards."""

    #: Folder of the checkpoints, relative to the run's root.
    path: str
    state: State
    writers: Writers
    topology: Topology
    #: Ranks of the run: all of the topology's, or with ``checkpoint.subset_of`` the first ones.
    ranks: int
    #: Bytes of each writer, by number.
    sizes: tuple[int, ...]
    schedule: Schedule
    request_bytes: int
    fsync: bool
    #: Bytes per second of the copy that is written in the background; None: training waits for the write.
    snapshot_rate: float | None
    identity: Identity
    #: Epochs of the run.
    epochs: int
    #: Time from one to the next; the schedule then has each step, as one may follow each. None: by the schedule alone.
    seconds: float | None = None
    #: Checkpoints alone, without training; None: training.
    phases: Phases | None = None
    #: Time in which rank 0 sends a restored state to all ranks, once all are there.
    broadcast_seconds: float = 0.0
    #: Complete checkpoints that stay; None: all.
    keep: int | None = None
    #: Increments between full checkpoints; None: each is full.
    incremental: Incremental | None = None
    #: The checkpoint that the run begins with, on modelled storage a placeholder; None without one.
    restored: Restored | None = None
    #: The name of its ``Saver``; on modelled storage ``raw``.
    engine: str = "raw"
    #: The run in stamps and manifests: the first part of one that was resumed has the same.
    run: str = ""
    #: True if the run may replace checkpoints: then their manifests are removed first.
    is_replacing: bool = False
    #: What writers write to first; None: to ``path`` alone.
    burst: BurstTier | None = None
    #: False if ranks never wait for each other: then they train on while another one saves.
    meets: bool = True

    @property
    def behind(self) -> Behind | None:
        """How modelled files are written to ``path``: in pieces if ranks read meanwhile; None: each at once."""
        if self.burst is not None:
            return self.burst.behind
        is_read_meanwhile = self.snapshot_rate is not None or not self.meets
        return IN_PIECES if is_read_meanwhile and self.phases is None else None

    @property
    def tier_devices(self) -> list[DeviceSpec]:
        """The rates of each device of a modelled burst tier."""
        tier = self.burst
        if tier is None:
            return []
        return [tier.storage.device] * (self.topology.nodes if tier.scope == "node" else 1)

    def tier_share(self, rank: int) -> int:
        """Return the bytes of the burst tier that a rank may use."""
        own = sum(self.sizes[writer] for writer in self.writers.of_rank(rank, self.topology))
        return 0 if self.burst is None else self.burst.share(own)

    def names_of(self, writer: int) -> tuple[str, ...]:
        """Return the names of a writer's files in one checkpoint of the burst tier, and of the index of all files."""
        if self.burst is None:
            return ()
        return (*(part.name for part in self.writers.files(writer, self.state, self.topology)), *self.index())

    def held_of(self, rank: int) -> list[Left]:
        """Return a rank's files that a restore left in the burst tier, by checkpoint."""
        restored, left = self.restored, list[Left]()
        if restored is not None:
            for link, number in zip_longest(restored.chain, restored.numbers, fillvalue=-1):
                assert isinstance(link, Link)
                if link.folder in restored.in_burst:
                    shards, is_undrained = self.restored_shards(restored, link, rank), link.folder in restored.undrained
                    left.append(Left(shards, number, is_undrained))
        return left

    def shards(self, at: Where, steps: int, chain: tuple[int, ...] = ()) -> Sequence[Shard]:
        """Return the shards that rank ``at.rank``, with ``steps`` steps in this epoch, saves after this step.

        ``chain`` is that of the checkpoint before.
        """
        due = self.schedule.due(at.epoch, at.step, steps)
        if not due:
            return ()
        numbers, shards = self.writers.of_rank(at.rank, self.topology), list[Shard]()
        for number in due:
            chain = self.longer(chain, number)
            link = self.link(number, chain)
            shards += (shard for writer in numbers for shard in self._shards_in(link, writer))
        return tuple(shards)

    def number_of(self, epoch: int, step: int) -> int:
        """Return the number of the checkpoint after a step; -1 for a step without one."""
        if self.phases is not None:
            return step
        return max(self.schedule.due(epoch, step, self.schedule.steps.of(epoch)), default=-1)

    def longer(self, chain: tuple[int, ...], number: int) -> tuple[int, ...]:
        """Return the numbers that a restore of a checkpoint reads; ``chain`` is that of the one before, if any."""
        return () if self.incremental is None else self.incremental.longer(chain, number)

    def link(self, number: int, chain: Sequence[int] = ()) -> Link:
        """Return the checkpoint of a number; ``chain`` has the numbers that a restore of it reads."""
        kind = self.incremental
        if kind is None or (len(chain) == 1 if chain else kind.is_full(number)):
            return Link(*self._place(number))
        base = chain[-2] if chain else number - 1
        return Link(*self._place(number), kind.fraction, checkpoint_folder(*self._place(base)))

    def _place(self, number: int) -> tuple[int, int]:
        return (0, number) if self.phases is not None else self.schedule.step(number)

    def restored_at(self, epoch: int, step: int, chain: Sequence[int] = ()) -> Restored:
        """Return a checkpoint that this run has written, with all that a restore of it reads: those of ``chain``."""
        number = self.number_of(epoch, step)
        chain = (number,) if self.incremental is None else chain or self.incremental.chain(number)
        links = tuple(self.link(each, chain[: place + 1]) for place, each in enumerate(chain))
        return Restored(epoch, step, self.request_bytes, self.run, links)

    def increments(self) -> Iterator[Shard]:
        """Return the files of all increments of the run; none if the clock decides which there are."""
        numbers = range(self.schedule.number) if self.incremental is not None and self.seconds is None else ()
        for link in (link for link in map(self.link, numbers) if link.fraction < 1):
            for writer in range(len(self.sizes)):
                yield from self._shards_in(link, writer)

    def may_write(self, epoch: int, step: int) -> bool:
        """Return True if a checkpoint after this step is due in the run."""
        return epoch < self.epochs and bool(self.schedule.due(epoch, step, self.schedule.steps.of(epoch)))

    def shards_of(self, rank: int, place: tuple[int, int]) -> Sequence[Shard]:
        """Return the shards that a rank saves of the checkpoint after a step, given as (epoch, step)."""
        numbers, link = self.writers.of_rank(rank, self.topology), self.link(self.number_of(*place))
        return tuple(shard for number in numbers for shard in self._shards_in(link, number))

    def _shards_in(self, link: Link, writer: int) -> Iterator[Shard]:
        for part in self.writers.files(writer, self.state, self.topology):
            path, size = f"{link.folder}/{part.name}", changed(part.num_bytes, link.fraction)
            yield Shard(path, size, self.request_bytes, self.fsync, writer, run=self.run, link=link)

    @property
    def largest(self) -> list[int]:
        """Bytes of each file of the writer with the most bytes."""
        writer = max(range(len(self.sizes)), key=self.sizes.__getitem__)
        return [part.num_bytes for part in self.writers.files(writer, self.state, self.topology)]

    def writers_of(self, ranks: Iterable[int]) -> Sequence[int]:
        """Return the numbers of the writers of some ranks' shards, and of the one that completes checkpoints."""
        writers = {writer for rank in ranks for writer in self.writers.of_rank(rank, self.topology)}
        return sorted(writers | {COMPLETER}) if writers else ()

    @property
    def saver(self) -> Saver:
        """The engine that writes and reads the files."""
        saver: Saver = SAVERS[self.engine]
        return saver

    def fill(self, file: BinaryIO, path: str, num_bytes: int, request_bytes: int) -> Filled:
        """Write the content of a file with a state of ``num_bytes``; ``path`` is that in the folder of checkpoints."""
        return self.saver.fill(file, path, num_bytes, request_bytes, Stamp(self.run, path).content)

    @property
    def parts(self) -> dict[str, int]:
        """The names of the files that ranks save in one checkpoint, with the bytes of their state."""
        writers = range(len(self.sizes))
        parts = (part for writer in writers for part in self.writers.files(writer, self.state, self.topology))
        return {part.name: part.num_bytes for part in parts}

    def index(self, fraction: float = 1.0) -> Mapping[str, bytes]:
        """Return the files of one checkpoint that are written before its manifest, by name; see :meth:`files`."""
        if fraction not in self._indexes:
            parts = {name: changed(num_bytes, fraction) for name, num_bytes in self.parts.items()}
            self._indexes[fraction] = self.saver.index(parts)
        return self._indexes[fraction]

    def files(self, fraction: float = 1.0) -> dict[str, int]:
        """Return the names of the files of one checkpoint, with their bytes; the manifest is none of them.

        ``fraction`` is the share of the state that the checkpoint has.
        """
        saver = self.saver
        each = {name: saver.file_bytes(changed(num_bytes, fraction)) for name, num_bytes in self.parts.items()}
        return each | {name: len(content) for name, content in self.index(fraction).items()}

    def check_memory(self, free: int) -> None:
        """Refuse a state that a writer holds, and that does not fit in a node's free memory (bytes).

        Raises:
            ScenarioError: one line with both numbers.
        """
        largest = max(self.parts.values(), default=0)
        reads = self.restored is not None or (self.phases is not None and self.phases.reads > 0)
        if self.saver.holds_state and (needed := largest * (1 + reads)) > free:
            raise ScenarioError(
                f"checkpoint.engine={self.engine}: a writer holds {format_excess(needed, free)}, a state"
                f"{' and the one that it reads' * reads}; {format_bytes(free)} are free on this machine; use "
                "smaller parts (checkpoint.writers, checkpoint.model), or checkpoint.engine=raw"
            )

    def prepare(self, writer: int) -> None:
        """Make the state that a writer saves."""
        files = self.writers.files(writer, self.state, self.topology)
        self.saver.prepare(max((part.num_bytes for part in files), default=0), self.request_bytes)

    def restored_shards(self, restored: Restored, link: Link, rank: int) -> Sequence[Shard]:
        """Return the shards of a checkpoint that a rank reads: those that it, or ``phases.shift`` ranks on, would save.

        ``link`` is one of its chain. The rank's own writers read them.
        """
        shift = 0 if self.phases is None else self.phases.shifted(self.topology.ranks_per_node)
        theirs = self.writers.of_rank((rank + shift) % self.ranks, self.topology)
        mine, in_burst = self.writers.of_rank(rank, self.topology), link.folder in restored.in_burst
        return tuple(
            shard._replace(period=restored.request_bytes, writer=reader, run=restored.run, in_burst=in_burst)
            for number, reader in zip(theirs, mine, strict=True)
            for shard in self._shards_in(link, number)
        )

    def manifest(self, link: Link, run: str, attempt: int, now: int) -> Manifest:
        """Return the manifest of a checkpoint at the time ``now`` (ns)."""
        of = self.identity
        if link.fraction not in self._files:
            self._files[link.fraction] = self.files(link.fraction)
        return Manifest(
            run=run, attempt=attempt, epoch=link.epoch, step=link.step, saved_ns=now, scenario=of.scenario,
            model=of.model, layout=of.layout, request_bytes=self.request_bytes, files=self._files[link.fraction],
            base=link.base, fraction=link.fraction,
        )  # fmt: skip

    @cached_property
    def _files(self) -> dict[float, Mapping[str, int]]:
        """Files by the share of the state that they have, as far as they were needed."""
        return {}

    @cached_property
    def _indexes(self) -> dict[float, Mapping[str, bytes]]:
        """Indexes, in the same way."""
        return {}
