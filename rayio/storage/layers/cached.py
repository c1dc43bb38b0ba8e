"""A modelled cache of samples in a node's memory, before a modelled storage: what it holds, and who reads what from it.

The unit is a sample. A batch is looked up sample by sample as it is asked for: what is there comes from memory, what
another reader of the node is reading at that moment is awaited and comes from memory then, and the rest is read from
the storage. Whatever was looked up is the last that was used; what was used longest ago makes room for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from rayio.seeds import Draws
from rayio.storage.base import Clock, Divisible, Issued, Moved, Opener, Requests, Served, Storage
from rayio.storage.model import Arbiter, DeviceSpec, Latencies, ModelStorage
from rayio.storage.presets import MEMORY

T = TypeVar("T")

#: A batch, by its rank, epoch and step: who reads what is missing.
Who = tuple[int, int, int]

#: What a cache says of a sample: whoever asked is to read it, somebody else is reading it, or it is there.
MISSING, COMING, THERE = range(3)

#: The memory of a node.
MEMORY_SPEC = DeviceSpec(MEMORY.connection_bandwidth, MEMORY.bandwidth)


class Lru:
    """Keys with sizes, as many as fit into a number of bytes: what was used longest ago makes room. Pure.

    >>> kept = Lru(100)
    >>> [kept.use(key, 40) for key in (1, 2, 1, 3, 1, 2)], kept.nbytes
    ([False, False, True, False, True, False], 80)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        #: Bytes of what is there, never more than ``capacity``.
        self.nbytes = 0
        #: What was used longest ago comes first.
        self._sizes: OrderedDict[int, int] = OrderedDict()  # a dict would look for its first key ever longer

    def use(self, key: int, size: int) -> bool:
        """Say whether a key is there; from then on it is, unless it is larger than all the room."""
        sizes = self._sizes
        if key in sizes:
            sizes.move_to_end(key)
            return True
        if size <= self.capacity:
            sizes[key] = size
            self.nbytes += size
            while self.nbytes > self.capacity:
                self.nbytes -= sizes.popitem(last=False)[1]
        return False

    def clear(self) -> None:
        """Have nothing there."""
        self._sizes.clear()
        self.nbytes = 0


class Cache(Arbiter, Protocol):
    """The cache of a node and the memory that it is in, which may live elsewhere; see ``rayio.model.node_cache``."""

    def look(self, who: Who, keys: Sequence[int], sizes: Sequence[int]) -> list[int] | Awaitable[list[int]]:
        """Say of each sample which of ``MISSING``, ``COMING`` and ``THERE`` it is; ``who`` reads what is missing."""

    def came(self, who: Who, keys: Sequence[int]) -> Awaitable[None] | None:
        """Learn that ``who`` has read samples that were missing."""

    def arrived(self, keys: Sequence[int]) -> Awaitable[None]:
        """Return once nobody is reading any of these samples."""


class CachedStorage:
    """One role's way to the dataset: through the cache of its node."""

    def __init__(
        self, storage: Storage, cache: Cache, clock: Clock, *, io_depth: int = 1, is_itemised: bool = False
    ) -> None:
        self.storage = storage
        self.cache = cache
        self.memory = ModelStorage(cache, MEMORY_SPEC, _OfMemory(), clock, io_depth=io_depth, is_itemised=is_itemised)

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Read what the cache has not from the storage, then the rest from memory."""
        who, samples = requests.address, requests.samples
        assert samples is not None
        asked = self.cache.look(who, samples.keys, samples.nbytes)
        found = asked if isinstance(asked, list) else await asked
        missing = [place for place, state in enumerate(found) if state == MISSING]
        if not missing:
            return await self._remembered(requests, samples, found, load)
        is_whole = len(missing) == len(found)
        served = await self.storage.read(requests if is_whole else samples.requests(np.array(missing)), load)
        if (told := self.cache.came(who, [samples.keys[place] for place in missing])) is not None:
            await told
        fetched = Moved(served.nbytes, served.nbytes, None)
        if is_whole:
            return served._replace(moved=fetched)
        rest = samples.requests(np.array([place for place, state in enumerate(found) if state != MISSING]))
        remembered = await self._remembered(rest, samples, found, load)
        assert remembered.moved is not None
        return Served(
            None, served.opens + remembered.opens, served.requests + remembered.requests,
            served.nbytes + remembered.nbytes, issued=_joined(served.issued, remembered.issued), retried=served.retried,
            moved=fetched + remembered.moved,
        )  # fmt: skip

    async def _remembered(
        self, requests: Requests, samples: Divisible, found: Sequence[int], load: Callable[[Opener], T]
    ) -> Served[T | None]:
        """Read from memory, once all that others are reading has come."""
        if COMING in found:
            coming = [key for key, state in zip(samples.keys, found, strict=True) if state == COMING]
            await self.cache.arrived(coming)
        served = await self.memory.read(requests, load)
        return served._replace(moved=Moved(served.nbytes, 0, None))

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write past the cache."""
        return await self.storage.write(path, num_bytes, request_bytes, fsync=fsync)


class _OfMemory(Latencies):
    """The times of requests to memory, which are all the same, so that none has to be drawn."""

    def __init__(self) -> None:
        super().__init__(lambda key, index: np.full(index.shape, MEMORY.first_byte_median), 0, together=1)

    def sum_of_reads(
        self, address: tuple[int, int, int], number: int, latency: Draws | None = None, num_opens: int = 0
    ) -> float:
        """The sum of :meth:`of_reads`."""
        return number * MEMORY.first_byte_median


def _joined(first: Issued | None, then: Issued | None) -> Issued | None:
    """The requests of two parts of one read; a file may have been asked in both."""
    if first is None or then is None:
        return first or then
    files = list(dict.fromkeys([*first.files, *then.files]))
    number = {path: place for place, path in enumerate(files)}
    rows = np.concatenate([first.rows, then.rows])
    rows["file"] = [number[one.files[file]] for one in (first, then) for file in one.rows["file"].tolist()]
    return Issued(rows, files)
