"""``storage.cache``: a modelled cache of samples in each node's memory, in front of a modelled storage.

The unit is a sample. A batch is looked up sample by sample as it is asked for: what is there comes from memory, what
another reader of the node is reading at that moment is awaited and comes from memory then, and the rest is read from
the storage. Whatever was looked up is the last that was used; what was used longest ago makes room for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
from pydantic import Field

from rayio.scenario.change import BOTH, Change, with_keys
from rayio.schema.fields import Bytes, JsonSchema, NotYetError, Reads, RefusedError, Section, choice, show
from rayio.seeds import Draws
from rayio.storage.base import Divisible, Issued, Moved, Opener, Requests, Served, Storage
from rayio.storage.layers.layer import Arrival, Ask, Kernel, Layer, Mount
from rayio.storage.model import Arbiter, CalledDevice, Device, DeviceSpec, Latencies, ModelStorage
from rayio.storage.presets import MEMORY
from rayio.units import BYTES, format_bytes

if TYPE_CHECKING:
    from rayio.scenario.change import Run
    from rayio.scenario.model import Scenario

T = TypeVar("T")

#: A batch, by its rank, epoch and step: who reads what is missing.
Who = tuple[int, int, int]

#: What a cache says of a sample: whoever asked is to read it, somebody else is reading it, or it is there.
MISSING, COMING, THERE = range(3)

#: The memory of a node.
MEMORY_SPEC = DeviceSpec(MEMORY.connection_bandwidth, MEMORY.bandwidth)


#: How a cache is written, for whoever wrote something else.
_SUCH_AS = "[{tier: ram, bytes: 64 GiB}]"


class CacheTier(Section):
    """Memory of each node that keeps samples of the datasets, whole, and what was used longest ago no longer."""

    tier: Annotated[Literal["ram"], choice("ram", later=("local_disk",))] = Field(
        description="What it is in: the node's memory. local_disk is not built yet."
    )
    bytes: Bytes = Field(description="Bytes of samples that each node keeps.")
    policy: Annotated[Literal["lru"], choice("lru")] = Field(
        "lru", description="What makes room for others: what was used longest ago."
    )


def _cache(value: Any) -> tuple[CacheTier, ...] | None:
    """Read the tiers of cache: none, or a list of one."""
    if value is None or value == "none":
        return None
    if value is False:
        raise RefusedError("write none (YAML reads off and no as false)")
    if not isinstance(value, (list, tuple)) or not all(isinstance(tier, (CacheTier, Mapping)) for tier in value):
        raise RefusedError(f"must be none, or a list of one tier, such as {_SUCH_AS}")
    if not value:
        raise RefusedError(f"has no tier; write none, or one such as {_SUCH_AS}")
    if len(value) > 1:
        raise NotYetError(show(value), instead=["one tier"])
    return (CacheTier.model_validate(value[0]),)


def _cache_schema() -> JsonSchema:
    tiers = {"type": "array", "items": CacheTier.model_json_schema(), "minItems": 1, "maxItems": 1}
    return {"anyOf": [tiers, {"const": "none"}, {"type": "null"}]}


class CacheOptions(Section):
    """What ``storage`` may say of caches."""

    cache: Annotated[tuple[CacheTier, ...] | None, Reads(_cache, _cache_schema)] = Field(
        None,
        description="Cache of each node in front of modelled storage: a list of one tier of memory. Real storage has "
        "the caches that are there (page_cache).",
    )


@dataclass(frozen=True)
class NodeCaches(Layer):
    """A cache of so many bytes on each node that reads."""

    capacity: int

    name: ClassVar[str] = "cache"
    role: ClassVar[str] = "cache"
    options: ClassVar[type[Section]] = CacheOptions
    sharing: ClassVar[Literal["", "node", "all"]] = "node"
    needs_samples: ClassVar[bool] = True
    own: ClassVar[str] = "cache (storage.cache)"
    idle_if_real: ClassVar[str] = (
        "storage.cache: no effect, because real storage has real caches (see storage.page_cache)"
    )

    @classmethod
    def of(cls, scenario: Scenario, options: Section | None, *, modelled: bool) -> NodeCaches | None:
        """Return the caches of a scenario's nodes; real storage has none of ours."""
        tiers = options.cache if isinstance(options, CacheOptions) else None
        return cls(tiers[0].bytes) if tiers and modelled else None

    def wrap(self, storage: Storage, mount: Mount) -> Storage:
        """Put the cache in front of the datasets; files of checkpoints are written past it."""
        return CachedStorage(storage, mount.shared(), mount) if mount.is_dataset else storage

    def state(self, kernel: Kernel) -> NodeCache:
        """Make the cache of one node."""
        return NodeCache(kernel, self.capacity)

    def reach(self, ask: Ask) -> CalledCache:
        """Return the cache of a node in another process."""
        return CalledCache(ask)

    @property
    def told(self) -> str:
        """What is modelled of it, for readers of a prediction."""
        return (
            f"storage.cache: each node that reads keeps {format_bytes(self.capacity)} of samples in memory, the least "
            "recently used go first (it serves as storage.model=memory does, which is assumed)"
        )

    def changes(self, run: Run) -> Iterator[Change]:
        """Twice the memory for samples on each node, unless they have room for all."""
        from rayio.scenario import derive  # actors, which have this layer too, load nothing of a whole scenario

        if self.capacity < derive.dataset_bytes(run.scenario):
            yield Change(
                "cache × 2", kind="setting", to=self.scaled, effort=1, helps=("input",), tried_by=BOTH,
                key=f"storage.cache=[{{tier: ram, bytes: {BYTES.exact(2 * self.capacity)}}}]",
            )  # fmt: skip

    def scaled(self, scenario: Scenario) -> Scenario:
        """Return a scenario with twice the memory for samples."""
        tiers = tuple(tier.model_copy(update={"bytes": 2 * tier.bytes}) for tier in scenario.storage.cache or ())
        return with_keys("storage", cache=tiers)(scenario)

    @property
    def keeps(self) -> str:
        """Return how bytes came that storage was not asked for."""
        return f"storage.cache: modelled caches of {format_bytes(self.capacity)} on each reading node, empty at first"


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
    """The cache of a node and the memory that it is in, which may live elsewhere; see :class:`NodeCache`."""

    def look(self, who: Who, keys: Sequence[int], sizes: Sequence[int]) -> list[int] | Awaitable[list[int]]:
        """Say of each sample which of ``MISSING``, ``COMING`` and ``THERE`` it is; ``who`` reads what is missing."""

    def came(self, who: Who, keys: Sequence[int]) -> Awaitable[None] | None:
        """Learn that ``who`` has read samples that were missing."""

    def arrived(self, keys: Sequence[int]) -> Awaitable[None]:
        """Return once nobody is reading any of these samples."""


class _Reading:
    """A batch that is being read, and what is set once it was."""

    __slots__ = ("arrived", "who")

    def __init__(self, who: Who, arrived: Arrival) -> None:
        self.who = who
        self.arrived = arrived


class NodeCache:
    """One node's cache of ``capacity`` bytes, which all its readers share; see :class:`Cache`.

    A sample is read by one of them at a time: the others wait for it, as readers of one page do. A batch that is read
    once more, because its reader was killed, reads again what it was to read.
    """

    def __init__(self, kernel: Kernel, capacity: int) -> None:
        self.kernel = kernel
        self.kept = Lru(capacity)
        #: The memory that it is in.
        self.device = Device(MEMORY_SPEC)
        self.reserve, self.reserve_again = self.device.reserve, self.device.reserve_again
        #: By sample: the batch with which it is being read.
        self._coming: dict[int, _Reading] = {}

    def look(self, who: Who, keys: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Use samples one after the other: say of each whether it was there; ``who`` reads those that are missing."""
        found, mine = [], None
        for key, size in zip(keys, sizes, strict=True):
            is_there = self.kept.use(key, size)
            reading = self._coming.get(key)
            if reading is None and not is_there:
                mine = mine or _Reading(who, self.kernel.future("a sample that another reader of the node reads"))
                self._coming[key] = reading = mine
            found.append(THERE if reading is None else MISSING if reading.who == who else COMING)
        return found

    def came(self, who: Who, keys: Sequence[int]) -> None:
        """Learn that a batch has read samples, and let those go on who wait for them."""
        for key in keys:
            reading = self._coming.get(key)
            if reading is not None and reading.who == who:
                del self._coming[key]
                if not reading.arrived.done():
                    reading.arrived.set_result(None)

    async def arrived(self, keys: Sequence[int]) -> None:
        """Return once nobody is reading any of these samples."""
        for key in keys:
            if (reading := self._coming.get(key)) is not None:
                await reading.arrived

    def clear(self) -> None:
        """Begin empty, as a node does that comes anew: whoever was reading here before is gone."""
        self.kept.clear()
        coming, self._coming = self._coming, {}
        for reading in coming.values():
            if not reading.arrived.done():
                reading.arrived.set_result(None)


class CalledCache(CalledDevice):
    """The cache of a node in another process."""

    async def look(self, who: Who, keys: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """See :meth:`Cache.look`."""
        found: list[int] = await self.ask("look", who, keys, sizes)
        return found

    async def came(self, who: Who, keys: Sequence[int]) -> None:
        """See :meth:`Cache.came`."""
        await self.ask("came", who, keys)

    async def arrived(self, keys: Sequence[int]) -> None:
        """See :meth:`Cache.arrived`."""
        await self.ask("arrived", keys)


class CachedStorage:
    """One role's way to the dataset: through the cache of its node."""

    def __init__(self, storage: Storage, cache: Cache, mount: Mount) -> None:
        self.storage = storage
        self.cache = cache
        self.memory = ModelStorage(
            cache, MEMORY_SPEC, _OfMemory(), mount.clock, io_depth=mount.io_depth, is_itemised=mount.is_itemised
        )

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
            moved=fetched + remembered.moved, delays=served.delays, skipped=served.skipped,
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
