"""The actors of checkpoint writers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from rayio.engines.ray.actors.birth import Birth
from rayio.engines.ray.actors.shells import Host
from rayio.engines.ray.transport.lines import Exchange
from rayio.model import roles
from rayio.model.checkpoint_ports import COMPLETER, Shard
from rayio.model.manifest import Link
from rayio.place import Where
from rayio.storage.base import Served


class CheckpointWriter(Host):
    """Checkpoint writers. They generate the bytes, so no state crosses processes."""

    drains = True

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self._envs = {number: self.wiring.writer(number) for (number,) in birth.members}
        self._busy = {number: asyncio.Lock() for number in self._envs}
        self._draining = {number: asyncio.Lock() for number in self._envs}
        #: The newest attempt that called: drains of older ones are not begun.
        self._attempt = 0
        calls = (self.write, self.read, self.drain, self.clear, self.report)
        self.exchange = Exchange({call.__name__: call for call in calls})
        #: Only in the actor of the writer that completes checkpoints.
        self._completion = self.wiring.completion(self._envs[COMPLETER]) if COMPLETER in self._envs else None

    async def write(self, number: int, shard: Shard, at: Where) -> Served[None]:
        """Write one shard; a repeated call writes the same file again."""
        self.begin()
        async with self._busy[number]:
            return await roles.write_shard(self._envs[number], shard, at)

    async def read(self, number: int, shard: Shard, at: Where) -> Served[None]:
        """Read and verify one shard."""
        self.begin()
        async with self._busy[number]:
            return await roles.read_shard(self._envs[number], shard, at)

    async def drain(self, number: int, shard: Shard, at: Where) -> Served[None]:
        """Copy one shard from the burst tier to storage; a repeated call copies the same file again."""
        self.begin()
        async with self._draining[number]:
            if at.attempt < self._attempt:
                return Served(None, 0, 0, 0)
            return await roles.drain_shard(self._envs[number], shard, at)

    async def clear(self, number: int, kept: Collection[str], at: Where) -> None:
        """Remove a writer's files from the burst tier, but those of the ``kept`` checkpoints."""
        self.begin()
        self._attempt = max(self._attempt, at.attempt)
        saves = self.plan.checkpointing
        async with self._busy[number]:  # a file of a dead rank is written first
            await roles.clear_tier(self._envs[number], () if saves is None else saves.names_of(number), kept)

    async def report(self, durable: Mapping[Link, Sequence[str]], at: Where, in_burst: bool) -> list[Link]:
        """Count durable files; the last one's report writes the manifest. Return complete checkpoints."""
        self.begin()
        assert self._completion is not None
        return await self._completion.report(durable, at, in_burst)
