"""Completing checkpoints: one place counts the durable files of each, and has the last one's manifest written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Protocol

from rayio.model.env import Env
from rayio.model.kernel import Future
from rayio.model.manifest import NAME, Link, Manifest, needed, remove, remove_unfinished, search
from rayio.model.saving import Checkpointing
from rayio.place import Where
from rayio.storage.stores.opening import Store

#: Time between two looks at the run's resume file (ns).
PAUSE_NS = 20_000_000
#: Bytes of old checkpoints for which the file is written at once; fewer wait for its next write, within 2 s.
MUCH_BYTES = 64 << 20


class Complete(Protocol):
    """A function that writes a manifest: ``rayio.model.roles.complete``."""

    def __call__(
        self, env: Env, manifest: Manifest, index: Mapping[str, bytes], at: Where, *, fsync: bool, in_burst: bool
    ) -> Awaitable[None]:
        """Return when the manifest is there."""


class Booked(Protocol):
    """A function that has the run's resume file name a checkpoint: see ``rayio.model.attempts.Book``."""

    def __call__(self, number: int, is_needed: bool, /) -> Awaitable[Collection[int] | None]:
        """Return the numbers that they name."""


class Completion:
    """The durable files of a run's checkpoints, counted by the writer that writes their manifests.

    Ranks report files once they are durable, and repeat a report until they learn that the checkpoint is complete. So
    a writer that was started again knows soon what its predecessor knew, and nobody waits for a report. Those in a
    burst tier are counted apart.
    """

    def __init__(
        self, env: Env, checkpointing: Checkpointing, run: str, complete: Complete, booked: Booked, *,
        in_burst: bool = False,
    ) -> None:  # fmt: skip
        self.env = env
        #: The counter of those in the burst tier, unless this is it.
        self.tier: Completion | None = None
        self.in_burst = in_burst
        if checkpointing.burst is not None and not in_burst:
            self.tier = Completion(env, checkpointing, run, complete, booked, in_burst=True)
        self._booked = booked
        self.checkpointing = checkpointing
        self.run = run
        self._write = complete
        #: Names of durable files, by checkpoint; and the ones whose manifests are written or being written.
        self._durable: dict[Link, set[str]] = {}
        self._begun: set[Link] = set()
        self._complete: set[Link] = set()
        self._last: Future | None = None
        #: Complete checkpoints, the oldest first (None: not looked for), and those that follow them.
        self._kept: list[Manifest] | None = None
        self._new: list[Manifest] = []
        #: The attempt that is removing old ones; -1: none.
        self._retiring = -1
        #: Running removals of checkpoints.
        self._removing: set[Future] = set()
        self._attempt = 0

    @cached_property
    def _num_parts(self) -> int:
        return len(self.checkpointing.parts)

    async def report(self, durable: Mapping[Link, Sequence[str]], at: Where, in_burst: bool = False) -> list[Link]:
        """Add durable files, by checkpoint, and complete those that now have all; return complete ones.

        A report without files is the first of a rank's attempt. It is answered once nothing of earlier attempts is
        written or removed any more.
        """
        if in_burst and self.tier is not None:
            return await self.tier.report(durable, at)
        if at.attempt != self._attempt:  # all ranks began again: they save what followed their checkpoint anew
            if at.attempt < self._attempt:
                return []
            self._attempt = at.attempt
            for known in (self._durable, self._begun, self._complete):
                known.clear()
            self._kept = None  # some are withdrawn
            self._new.clear()
        if not durable:
            await self.begun()
        for link, names in durable.items():
            if link in self._begun:
                continue
            there = self._durable.setdefault(link, set())
            there.update(names)
            if len(there) == self._num_parts:
                self._begun.add(link)
                del self._durable[link]
                await self._finish(link, at)
        return [link for link in durable if link in self._complete]

    async def begun(self) -> None:
        """Wait until every manifest that is being written is there, and what is being removed is gone."""
        while (last := self._last) is not None and not last.done():
            await last
        while self._removing:
            await next(iter(self._removing))
        if self.tier is not None:
            await self.tier.begun()

    async def _settle(self, newest: Manifest) -> None:
        """Have the run's resume file name a complete checkpoint, then remove the oldest ones beyond those to be kept.

        One that the resume file names stays, so that a run that is killed at any time can be resumed from it. The
        caller that is here first does it for those that come meanwhile.
        """
        store, saved = self.env.store, self.checkpointing
        if store is None or saved.phases is not None:
            return
        if saved.keep is None:
            await self._booked(saved.number_of(newest.epoch, newest.step), False)
            return
        self._new.append(newest)
        attempt = self._attempt
        if self._retiring == attempt:
            return
        self._retiring = attempt
        try:
            while older := await self._surplus(store, saved.keep, attempt):
                stays = [manifest for manifest in self._kept or () if manifest not in older]
                is_much = sum(sum(manifest.files.values()) for manifest in older) >= MUCH_BYTES
                named = await self._booked(saved.number_of(stays[-1].epoch, stays[-1].step), is_much)
                if named is None:  # they cannot be written: everything stays
                    return
                ours = [known for known in stays if known.run == saved.run]
                books = [known for known in ours if saved.number_of(known.epoch, known.step) in named]
                if not await self.env.kernel.threaded(partial(_are_any, store, books)):
                    await self.env.kernel.sleep_until(self.env.kernel.now() + PAUSE_NS)
                    continue
                for manifest in older[::-1]:  # an increment before what it is an increment since
                    if attempt != self._attempt:
                        return
                    self._kept = None if self._kept is None else [m for m in self._kept if m is not manifest]
                    await self._remove(partial(remove, store, manifest))
        finally:
            if self._retiring == attempt:
                self._retiring = -1

    async def _surplus(self, store: Store, keep: int, attempt: int) -> list[Manifest]:
        """Return the complete checkpoints beyond those to be kept, the oldest first.

        There are none if the ``attempt`` is over: ranks may be writing them again.
        """
        there = None if self._kept is not None else await self.env.kernel.threaded(partial(search, store))
        if attempt != self._attempt:
            return []
        if there is not None:
            self._kept = [*reversed(there.complete)]
        assert self._kept is not None
        folders = {manifest.folder for manifest in self._new}
        self._kept = [*(manifest for manifest in self._kept if manifest.folder not in folders), *self._new]
        self._new.clear()
        newest, stay = self._kept[-1] if self._kept else None, needed(self._kept, keep)
        # ranks may be writing after later steps than the newest checkpoint's, in place of an earlier run's
        return [
            manifest
            for manifest in self._kept
            if manifest.folder not in stay
            and (
                newest is None
                or (place := (manifest.epoch, manifest.step)) < (newest.epoch, newest.step)
                or not self.checkpointing.may_write(*place)
            )
        ]

    async def _finish(self, link: Link, at: Where) -> None:
        """Write a manifest, after earlier ones."""
        env, before = self.env, self._last
        mine = self._last = env.kernel.future(f"the manifest of {link.folder}")
        if before is not None:
            await before
        try:
            now = 0 if env.store is None else env.kernel.now()  # a model's manifest has the same size at any time
            run = self.run if env.store is None else self.checkpointing.run
            manifest = self.checkpointing.manifest(link, run, at.attempt, now)
            if not (at.attempt and await self._is_complete(link)):
                index, place = self.checkpointing.index(link.fraction), Where(0, link.epoch, link.step, at.attempt)
                fsync = self.checkpointing.fsync
                await self._write(env, manifest, index, place, fsync=fsync, in_burst=self.in_burst)
            self._complete.add(link)
        finally:
            mine.set_result(None)
        if not self.in_burst:
            await self._settle(manifest)
            store, saved = env.store, self.checkpointing
            if at.attempt and store is not None and (saved.seconds is not None or saved.burst is not None):
                below = link.epoch, link.step  # ranks write checkpoints in order
                if at.attempt == self._attempt:
                    await self._remove(partial(remove_unfinished, store, saved.files(), below))

    async def _remove(self, removing: Callable[[], None]) -> None:
        """Remove checkpoints in a thread; ranks that begin again wait for it."""
        mine = self.env.kernel.future("a checkpoint to be removed")
        self._removing.add(mine)
        try:
            await self.env.kernel.threaded(removing)
        finally:
            self._removing.discard(mine)
            mine.set_result(None)

    async def _is_complete(self, link: Link) -> bool:
        """Return True if a checkpoint has its manifest, which a writer removes before it replaces a file."""
        tier = self.env.burst
        store = tier.store if self.in_burst and tier is not None else self.env.store
        return store is not None and await self.env.kernel.threaded(
            lambda: store.size(f"{link.folder}/{NAME}") is not None
        )


def _are_any(store: Store, manifests: Sequence[Manifest]) -> bool:
    """Return True if one of some checkpoints is complete: a rank that begins again removes manifests."""
    return any(store.size(f"{manifest.folder}/{NAME}") is not None for manifest in manifests)
