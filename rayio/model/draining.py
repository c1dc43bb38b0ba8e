"""A rank's part of the burst tier: room for what it saves, and the drains of its files, one checkpoint after another.

A rank has a share of the tier's capacity, by its bytes of a checkpoint, so no rank needs to know what others hold. Its
writers copy files to storage while it trains. What is drained stays in the tier until its room is needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from dataclasses import replace

from rayio.model.checkpoint_ports import Left, Shard
from rayio.model.env_checkpoints import CheckpointEnv
from rayio.model.kernel import Future
from rayio.model.ledger import Tally
from rayio.place import Where


class _Held:
    """A rank's files of a checkpoint in the tier."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards
        self.nbytes = sum(shard.num_bytes for shard in shards)
        self.folders = {shard.path.rpartition("/")[0] for shard in shards}
        #: The drain; None for what is in storage too, or not to be drained.
        self.draining: Awaitable[None] | None = None
        self.is_drained = False
        #: The number of the checkpoint, and a consumption, once the rank has passed it; see ``Saved.add``.
        self.mark: tuple[int, Tally] | None = None


class Drains:
    """A rank's part of the burst tier; ``share`` are its bytes, ``writers`` the numbers of the rank's writers."""

    def __init__(self, env: CheckpointEnv, share: int, writers: Collection[int]) -> None:
        self.env = env
        self.share = share
        self.writers = writers
        #: The oldest first.
        self._held: list[_Held] = []
        #: Set once the checkpoint that is written in the background has its room.
        self._room: Future | None = None

    def holds(self, folder: str) -> bool:
        """See ``rayio.model.checkpoint_ports.Drained``."""
        return any(folder in held.folders for held in self._held)

    async def begin(self, left: Sequence[Left], tally: Tally, at: Where) -> None:
        """Begin an attempt: the tier has nothing but what a restore ``left`` there, the oldest first."""
        await self._clear({shard.path.rpartition("/")[0] for each in left for shard in each.shards}, at)
        for shards, number, is_undrained in left:
            mark = (number, replace(tally)) if number >= 0 else None
            if shards:
                held, before = _Held(shards), self._held[-1].draining if self._held else None
                held.mark, held.is_drained = mark, not is_undrained
                self._held.append(held)
                if is_undrained:
                    held.draining = self.env.kernel.spawn(self._drain(held, before, at), f"{self.env.name} drains")
            elif is_undrained and mark is not None and self.env.saved is not None:  # the rank saves no part
                self.env.saved(*mark, False)

    async def room(self, shards: Sequence[Shard], at: Where) -> None:
        """Wait until the tier has room for files: ``drain_wait``."""
        start = self.env.kernel.now()
        self.env.doing = ("drain_wait", start, at, None)
        await self._free(shards, at)
        self._waited(start, at)

    async def make_room(self, shards: Sequence[Shard], at: Where) -> None:
        """Wait in the background until the tier has room for files."""
        self._room = room = self.env.kernel.future(f"room for a checkpoint of {self.env.name}")
        try:
            await self._free(shards, at)
        finally:
            self._room = None
            room.set_result(None)

    async def _free(self, shards: Sequence[Shard], at: Where) -> None:
        """Remove the oldest checkpoints, once they are drained, until there is room for files."""
        env, held = self.env, self._held
        nbytes, is_freed = sum(shard.num_bytes for shard in shards), False
        while held and nbytes + sum(each.nbytes for each in held) > self.share:
            oldest = held[0]
            if oldest.draining is not None:
                await oldest.draining
            env.raise_failure()
            del held[0]
            is_freed = True
            if env.saved is not None and oldest.mark is not None:
                env.saved(oldest.mark[0], None, True)
        if is_freed:
            await self._clear(set().union(*(each.folders for each in held)), at)

    async def room_behind(self, at: Where) -> None:
        """Wait until the checkpoint before, which is written in the background, has its room: ``drain_wait``."""
        if self._room is not None:
            start = self.env.kernel.now()
            self.env.doing = ("drain_wait", start, at, None)
            await self._room
            self._waited(start, at)
            self.env.raise_failure()

    def add(self, shards: Sequence[Shard], at: Where) -> None:
        """Start to drain files that are in the tier, after those before them."""
        held, before = _Held(shards), self._held[-1].draining if self._held else None
        self._held.append(held)
        held.draining = self.env.kernel.spawn(self._drain(held, before, at), f"{self.env.name} drains")

    def passed(self, number: int, tally: Tally) -> None:
        """Report a checkpoint that the rank has passed: in the tier now, and in storage once it is drained."""
        saved = self.env.saved
        assert saved is not None
        saved(number, tally, True)
        if not self._held:  # the rank saves no part
            saved(number, tally, False)
            return
        newest = self._held[-1]
        newest.mark = number, tally
        if newest.is_drained:
            saved(number, tally, False)

    async def end(self, at: Where) -> None:
        """Wait until everything is drained: ``drain_wait``."""
        start = self.env.kernel.now()
        self.env.doing = ("drain_wait", start, at, None)
        for held in [*self._held]:
            if held.draining is not None:
                await held.draining
        self._waited(start, at)

    def _waited(self, start: int, at: Where) -> None:
        self.env.doing = None
        if (end := self.env.kernel.now()) > start:
            self.env.span("drain_wait", start, end, at)

    async def _drain(self, held: _Held, before: Awaitable[None] | None, at: Where) -> None:
        env = self.env
        try:
            if before is not None:
                await before
            if env.failure is not None:
                return
            drains = (env.writers[each.writer].drain(each, each.saved_at(at)) for each in held.shards)
            await env.kernel.gather(*drains)
            held.is_drained = True
            env.durable_are(held.shards, at, in_burst=False)
            if env.saved is not None and held.mark is not None:
                env.saved(*held.mark, False)
        except Exception as error:  # raised when the rank next checks: it may not be waiting now
            env.failure = error

    async def _clear(self, kept: Collection[str], at: Where) -> None:
        """Remove this rank's files of all checkpoints but the ``kept`` ones from the tier."""
        if self.writers:
            await self.env.kernel.gather(*(self.env.writers[each].clear(kept, at) for each in self.writers))
