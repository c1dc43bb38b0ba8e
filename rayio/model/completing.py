"""Completing checkpoints: one place counts the durable files of each, and has the last one's manifest written."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from functools import cached_property, partial
from typing import Protocol

from rayio.model.env import Env
from rayio.model.kernel import Future
from rayio.model.manifest import Manifest, needed, remove, search
from rayio.model.saving import Checkpointing
from rayio.place import Where, checkpoint_place


class Complete(Protocol):
    """A function that writes a manifest: ``rayio.model.roles.complete``."""

    def __call__(
        self, env: Env, manifest: Manifest, index: Mapping[str, bytes], at: Where, *, fsync: bool
    ) -> Awaitable[None]:
        """Return when the manifest is there."""


class Completion:
    """The durable files of a run's checkpoints, counted by the writer that writes their manifests.

    Ranks report files once they are durable, and repeat a report until they learn that the checkpoint is complete. So
    a writer that was started again knows soon what its predecessor knew, and nobody waits for a report.
    """

    def __init__(self, env: Env, checkpointing: Checkpointing, run: str, complete: Complete) -> None:
        self.env = env
        self.checkpointing = checkpointing
        self.run = run
        self._write = complete
        #: Names of durable files, by folder; and the folders whose manifests are written or being written.
        self._durable: dict[str, set[str]] = {}
        self._begun: set[str] = set()
        self._complete: set[str] = set()
        self._last: Future | None = None
        #: Complete checkpoints, the oldest first; None until the first one must be removed.
        self._kept: list[Manifest] | None = None
        self._attempt = 0

    @cached_property
    def _num_parts(self) -> int:
        return len(self.checkpointing.parts)

    async def report(self, durable: Mapping[str, Sequence[str]], at: Where) -> list[str]:
        """Add durable files, by folder, and complete the checkpoints that now have all; return complete ones."""
        if at.attempt != self._attempt:  # all ranks began again: they save what followed their checkpoint anew
            if at.attempt < self._attempt:
                return []
            self._attempt = at.attempt
            for known in (self._durable, self._begun, self._complete):
                known.clear()
        for folder, names in durable.items():
            if folder in self._begun:
                continue
            there = self._durable.setdefault(folder, set())
            there.update(names)
            if len(there) == self._num_parts:
                self._begun.add(folder)
                del self._durable[folder]
                await self._finish(folder, at)
        return [folder for folder in durable if folder in self._complete]

    async def _retire(self, newest: Manifest) -> None:
        """Remove the oldest complete checkpoints beyond those to be kept; the newest one stays."""
        store, keep = self.env.store, self.checkpointing.keep
        if store is None or keep is None:
            return
        if self._kept is None:
            there = (await self.env.kernel.threaded(partial(search, store))).complete
            self._kept = [manifest for manifest in reversed(there) if manifest.folder != newest.folder]
        self._kept = [*(manifest for manifest in self._kept if manifest.folder != newest.folder), newest]
        stay = needed(self._kept, keep)
        older = [manifest for manifest in self._kept if manifest.folder not in stay]
        for manifest in older[::-1]:  # an increment before what it is an increment since
            # ranks may be writing after later steps than the newest checkpoint's, in place of an earlier run's
            place = manifest.epoch, manifest.step
            if place < (newest.epoch, newest.step) or not self.checkpointing.may_write(*place):
                self._kept.remove(manifest)
                await self.env.kernel.threaded(partial(remove, store, manifest))

    async def _finish(self, folder: str, at: Where) -> None:
        """Write a manifest, after earlier ones."""
        env, before = self.env, self._last
        mine = self._last = env.kernel.future(f"the manifest of {folder}")
        if before is not None:
            await before
        try:
            place = checkpoint_place(folder)
            assert place is not None
            now = 0 if env.store is None else env.kernel.now()  # a model's manifest has the same size at any time
            manifest = self.checkpointing.manifest(place, self.run, at.attempt, now)
            index = self.checkpointing.index
            await self._write(env, manifest, index, Where(0, *place, at.attempt), fsync=self.checkpointing.fsync)
            self._complete.add(folder)
            await self._retire(manifest)
        finally:
            mine.set_result(None)
