"""The part of a role's environment that saves and restores checkpoints: of ranks, and of checkpoint writers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, BinaryIO, cast

from rayio.model.burst import Tier
from rayio.model.checkpoint_ports import COMPLETER as COMPLETER
from rayio.model.checkpoint_ports import Drained, Marking, WriterPort
from rayio.model.checkpoint_ports import Shard as Shard
from rayio.model.kernel import Kernel
from rayio.model.ledger import Tally
from rayio.model.manifest import Link
from rayio.model.savers import Raw, Saver
from rayio.model.stamp import Stamp
from rayio.model.verified import with_remedy
from rayio.place import Where
from rayio.storage.base import Opener, Requests, Served, Storage, from_front
from rayio.storage.itemise import Samples
from rayio.storage.real import Noted
from rayio.storage.stores.opening import Store
from rayio.storage.uploads import sizes_of_writes
from rayio.trace.recorder import Add

#: In place of an epoch in the address of latencies: those of restoring differ from those of batches.
LOADING = -1


def _append(content: bytes, file: BinaryIO) -> None:
    file.write(content)


def _no_index(fraction: float) -> Mapping[str, bytes]:
    return {}


class CheckpointEnv:
    """The checkpoints of an environment (``rayio.model.env.Env``): see there for what it has besides."""

    kernel: Kernel
    name: str
    storage: Storage | None
    #: A rank's checkpoint writers, by number.
    writers: Mapping[int, WriterPort]
    span: Add
    sleep: Callable[..., Awaitable[int]]

    # What few roles need stays with the class: there are many readers, and Python is slower beyond 30 attributes.
    #: The last opened file of the activity.
    file = ""
    #: The time at which the last file of the activity was opened, or the last request to a checkpoint's was done.
    heard = 0
    #: The checkpoint being written in the background.
    _behind: Awaitable[None] | None = None
    #: Receives the checkpoints that this rank has passed and saved.
    saved: Marking | None = None
    #: The same of a checkpoint that is still being written.
    _unsaved: tuple[int, Tally] | None = None
    _number = 0
    #: The store of a checkpoint writer, for manifests; None for modelled storage, and for other roles.
    store: Store | None = None
    #: What makes the content of a checkpoint writer's files.
    saver: Saver = Raw()
    #: True if a checkpoint writer may replace files of complete checkpoints.
    is_replacing = False
    #: The burst tier of a checkpoint writer, and a rank's part of it.
    burst: Tier | None = None
    drains: Drained | None = None
    #: The file that a checkpoint writer drains, as ``doing`` has it.
    aside: tuple[str, int, Where, int | None] | None = None
    drained_file = ""

    def __init__(self) -> None:
        #: The current activity: its span's name, start, place and planned end, if known.
        self.doing: tuple[str, int, Where, int | None] | None = None
        #: Error of a checkpoint written in the background.
        self.failure: Exception | None = None
        #: The index of a checkpoint by the share of the state in it.
        self.index: Callable[[float], Mapping[str, bytes]] = _no_index

    @cached_property
    def _durable(self) -> dict[bool, dict[Link, list[str]]]:
        """Durable files of checkpoints that are not known to be complete, in storage and in the burst tier."""
        return {False: {}, True: {}}

    @cached_property
    def _reports(self) -> dict[int, Awaitable[None]]:
        """Running reports of them."""
        return {}

    def record_requests(self, served: Served[Any], at: Where, samples: Callable[[], Samples] | None = None) -> None:
        """Record the requests of a call to storage."""
        raise NotImplementedError

    def _record_failed(self, error: Exception, at: Where) -> None:
        """Record the failed attempts of a call to storage."""
        raise NotImplementedError

    async def write(self, shard: Shard, at: Where) -> Served[None]:
        """Write a shard of a checkpoint to storage."""
        assert self.storage is not None
        start = self.kernel.now()
        before, self.doing, self.file = self.doing, ("write", start, at, None), shard.path
        try:
            storage = self.storage if self.burst is None else self.burst.storage
            served = await storage.write(shard.path, shard.num_bytes, shard.request_bytes, fsync=shard.fsync)
        except Exception as error:
            self.span("write", start, self.kernel.now(), at, status="error")
            self._record_failed(error, at)
            raise
        self.doing = before
        start, end = self._at_work(start, served)
        written = max(start, end - served.sync_ns)
        begun = min(start + served.made_ns, written)
        if begun > start:  # the content is made while it is written
            self.span("serialise", start, begun, at)
        self.span("write", begun, written, at, nbytes=served.nbytes, requests=served.requests)
        if end > written:  # the file is forced to the device once it is complete
            self.span("fsync", written, end, at, requests=served.syncs)
        self.record_requests(served, at)
        return served

    async def load(self, shard: Shard, at: Where) -> Served[None]:
        """Read a shard of a checkpoint from storage; real bytes are compared with what was written.

        Raises:
            DataError: the file is missing, too short, or has another byte.
        """
        assert self.storage is not None
        start = self.kernel.now()
        before, self.doing, self.file = self.doing, ("load", start, at, None), shard.path
        sizes = sizes_of_writes(shard.num_bytes, shard.request_bytes)
        places = partial(from_front, shard.path, sizes)
        requests = Requests((shard.writer, LOADING, max(at.step, 0)), 1, sizes, places, shard.num_bytes, is_ahead=False)
        try:
            loading = self.saver.loading(
                shard.path, shard.num_bytes, shard.request_bytes, shard.period, self.index(shard.link.fraction),
                Stamp(shard.run, shard.path),
            )  # fmt: skip
            storage = self.burst.storage if shard.in_burst and self.burst is not None else self.storage
            served = await storage.read(requests, with_remedy(lambda opener: loading(self._opener(opener))))
        except Exception as error:
            self.span("load", start, self.kernel.now(), at, status="error")
            self._record_failed(error, at)
            raise
        self.doing = before
        start, end = self._at_work(start, served)
        compared, deserialised = served.value or (0, 0)
        made = max(start, end - compared)
        loaded = max(start, made - deserialised)
        self.span("load", start, loaded, at, nbytes=served.nbytes, requests=served.requests)
        if made > loaded:
            self.span("deserialise", loaded, made, at)
        if end > made:
            self.span("verify", made, end, at, nbytes=shard.num_bytes)
        self.record_requests(served, at)
        return Served(None, served.opens, served.requests, served.nbytes, moved=served.moved)

    def _at_work(self, start: int, served: Served[Any]) -> tuple[int, int]:
        """Return the begin and the end of a call that was made at ``start`` and ends now, without waits for threads."""
        before, after = served.waits_ns
        return start + before, self.kernel.now() - after

    def moved(self) -> None:
        """Note a request to a file of a checkpoint, for stall reports."""
        self.heard = self.kernel.now()

    def _opener(self, opener: Opener) -> Opener:
        return lambda path, *kept: cast(BinaryIO, Noted(opener(path, *kept), self.moved))

    async def drain(self, shard: Shard, at: Where) -> Served[None]:
        """Copy a shard from the burst tier to storage, while further ones may be written to the tier."""
        assert self.storage is not None
        assert self.burst is not None
        start, rate = self.kernel.now(), self.burst.spec.drain_rate
        self.aside, self.drained_file = ("drain", start, at, None), shard.path
        reading = self.burst.read_back(shard.writer, at.step, shard.num_bytes, shard.request_bytes)
        try:
            served, _ = await self.kernel.gather(
                self.storage.write(shard.path, shard.num_bytes, shard.request_bytes, fsync=shard.fsync), reading
            )
            if rate is not None and self.burst.store is None:
                await self.kernel.sleep_until(start + round(shard.num_bytes / rate * 1e9))
        except Exception as error:
            self.span("drain", start, self.kernel.now(), at, lane=1, status="error")
            self._record_failed(error, at)
            raise
        finally:
            self.aside = None
        assert served is not None
        self.span("drain", start, self.kernel.now(), at, lane=1, nbytes=served.nbytes, requests=served.requests)
        self.record_requests(served, at)
        return served

    async def withdraw(self, path: str, at: Where, *, in_burst: bool = False) -> None:
        """Remove the manifest of a checkpoint of which a file is about to be replaced."""
        store = self.burst.store if in_burst and self.burst is not None else self.store
        if store is not None and (in_burst or self.is_replacing or at.attempt):
            await self.kernel.threaded(partial(store.remove, path))

    async def publish(self, files: Mapping[str, bytes], at: Where, *, fsync: bool, in_burst: bool = False) -> None:
        """Write an index and a manifest: each atomically to the store, or as a small file to modelled storage."""
        start = self.kernel.now()
        storage, store = self.storage, self.store
        if in_burst and self.burst is not None:
            _, storage, store = self.burst
        for path, content in files.items():
            if store is None:
                assert storage is not None
                await storage.write(path, len(content), len(content), fsync=fsync)
            else:
                write = partial(store.write, path, partial(_append, content), fsync=fsync)
                await self.kernel.threaded(write)
        nbytes = sum(map(len, files.values()))
        self.span("manifest", start, self.kernel.now(), at, lane=1, nbytes=nbytes, requests=len(files))

    async def checkpoint(self, shards: Sequence[Shard], at: Where) -> None:
        """Write every shard in parallel and wait until all are durable: the rank's ``checkpoint``."""
        if self.drains is not None:
            await self.drains.room(shards, at)
        start = self.kernel.now()
        self.doing = ("checkpoint", start, at, None)
        served = await self._write_all(shards, at)
        self.doing = None
        nbytes, requests = sum(s.nbytes for s in served), sum(s.requests for s in served)
        self.span("checkpoint", start, self.kernel.now(), at, nbytes=nbytes, requests=requests)
        self._written_are(shards, at)

    async def broadcast(self, seconds: float, at: Where) -> None:
        """Wait until rank 0 has sent a restored state to all ranks."""
        raise NotImplementedError

    async def restore(
        self, shards: Sequence[Shard], at: Where, broadcast: tuple[float, Where] | None = None
    ) -> list[Served[None]]:
        """Read every shard in parallel and wait until all are verified: the rank's ``restore``, in no step.

        ``at`` has the place of the checkpoint. ``broadcast`` has the time in which rank 0 sends the state to all ranks,
        and the place where they meet before; it is part of the ``restore``.
        """
        start = self.kernel.now()
        self.doing = ("restore", start, at, None)
        served = await self.kernel.gather(*(self.writers[shard.writer].read(shard, at) for shard in shards))
        if broadcast is not None:
            await self.broadcast(*broadcast)
        self.doing = None
        nbytes, requests = sum(s.nbytes for s in served), sum(s.requests for s in served)
        here = Where(at.rank, attempt=at.attempt)
        self.span("restore", start, self.kernel.now(), here, nbytes=nbytes, requests=requests)
        return served

    async def _write_all(self, shards: Sequence[Shard], at: Where) -> list[Served[None]]:
        """Write every shard in parallel, recorded at the place of its checkpoint."""
        return await self.kernel.gather(
            *(self.writers[shard.writer].write(shard, shard.saved_at(at)) for shard in shards)
        )

    def _written_are(self, shards: Sequence[Shard], at: Where) -> None:
        """Drain files if they are in the burst tier, and report them."""
        if self.drains is not None:
            self.drains.add(shards, at)
        self.durable_are(shards, at, in_burst=self.drains is not None)

    def durable_are(self, shards: Sequence[Shard], at: Where, *, in_burst: bool) -> None:
        """Report durable files in the background: training does not wait for a manifest."""
        if not shards:
            return
        for shard in shards:
            self._durable[in_burst].setdefault(shard.link, []).append(shard.path.rpartition("/")[2])
        self._number += 1
        reporting = self._report(self._number, at, in_burst)
        self._reports[self._number] = self.kernel.spawn(reporting, f"{self.name} reports files")

    async def _report(self, number: int, at: Where, in_burst: bool) -> None:
        durable = self._durable[in_burst]
        try:
            for link in await self.writers[COMPLETER].report({**durable}, at, in_burst):
                durable.pop(link, None)
        except Exception as error:  # raised when the rank next checks
            self.failure = error
        finally:
            self._reports.pop(number, None)

    async def begin_again(self, at: Where) -> None:
        """Wait, at the begin of an attempt, until nothing of earlier ones is written or removed any more."""
        if self.writers:
            await self.writers[COMPLETER].report({}, at)

    async def reported(self, at: Where) -> None:
        """Wait until this rank's reports are answered, and repeat those of incomplete checkpoints once."""
        for report in [*self._reports.values()]:
            await report
        for in_burst, durable in self._durable.items():
            if durable and self.failure is None:
                await self._report(0, at, in_burst)
        self.raise_failure()

    async def checkpoint_behind(self, shards: Sequence[Shard], seconds: float, at: Where) -> None:
        """Copy the state, which takes ``seconds``, and write the copy while the rank continues.

        There is only one copy: while the previous checkpoint is not durable, the rank waits for it first.
        ``checkpoint`` is the time that holds the rank: that wait, and the copy.
        """
        if self.drains is not None:
            await self.drains.room_behind(at)
        start = self.kernel.now()
        await self._written(at)
        nbytes = sum(shard.num_bytes for shard in shards)
        await self.sleep("snapshot", seconds, at, lane=1, nbytes=nbytes)
        self.span("checkpoint", start, self.kernel.now(), at, nbytes=nbytes)
        self._behind = self.kernel.spawn(self._write_behind(shards, at), f"{self.name} writes behind")

    def passed(self, numbers: range, tally: Tally) -> None:
        """Report that the rank has passed checkpoints; one that is written in the background, when it is durable."""
        if self.saved is None or not numbers:
            return
        mark = numbers[-1], replace(tally)
        if self._behind is None:
            self._marked(*mark)
        else:
            self._unsaved = mark

    def _marked(self, number: int, tally: Tally) -> None:
        if self.drains is not None:
            self.drains.passed(number, tally)
        elif self.saved is not None:
            self.saved(number, tally)

    async def checkpoints_durable(self, at: Where) -> None:
        """Wait for the checkpoint that is written in the background; the wait counts as ``checkpoint``."""
        if self.drains is not None:
            await self.drains.room_behind(at)
        if self._behind is not None:
            start = self.kernel.now()
            await self._written(at)
            if (end := self.kernel.now()) > start:
                self.span("checkpoint", start, end, at)
        if self.drains is not None:
            await self.drains.end(at)
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the error of a checkpoint written in the background."""
        if self.failure is not None:
            raise self.failure

    async def _written(self, at: Where) -> None:
        """Wait until no background write remains: ``checkpoint_wait``."""
        if self._behind is not None:
            start = self.kernel.now()
            before, self.doing = self.doing, ("checkpoint_wait", start, at, None)
            await self._behind
            self.doing = before
            if (end := self.kernel.now()) > start:
                self.span("checkpoint_wait", start, end, at, lane=1)
        self.raise_failure()

    async def _write_behind(self, shards: Sequence[Shard], at: Where) -> None:
        try:
            if self.drains is not None:
                await self.drains.make_room(shards, at)
            await self._write_all(shards, at)
            self._written_are(shards, at)
            if self._unsaved is not None:
                self._marked(*self._unsaved)
        except Exception as error:  # raised when the rank next checks: it may not be waiting now
            self.failure = error
        finally:
            self._behind = self._unsaved = None
