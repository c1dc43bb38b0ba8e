"""``storage.cache``: a modelled cache of samples in each node's memory, in front of a modelled storage.

A batch is looked up sample by sample. Cached samples come from memory, samples that another worker of the node is
reading come from memory after that read, and the rest is read from storage. The least recently used samples go first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
from pydantic import Field

from rayio.scenario.change import BOTH, Change, with_keys
from rayio.schema.fields import Bytes, JsonSchema, NotYetError, Reads, RefusedError, Section, choice, each, show
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

#: A batch that reads missing samples, by its rank, epoch and step.
Who = tuple[int, int, int]

#: The state of a sample: the caller must read it, another batch is reading it, or it is cached.
MISSING, COMING, THERE = range(3)

MEMORY_SPEC = DeviceSpec(MEMORY.connection_bandwidth, MEMORY.bandwidth)

_SUCH_AS = "[{tier: ram, bytes: 64 GiB}]"


class CacheTier(Section):
    """A cache of whole samples in each node's memory; the least recently used go first."""

    tier: Annotated[Literal["ram"], choice("ram", later=("local_disk",))] = Field(
        description="What it is in: the node's memory. local_disk is not built yet."
    )
    bytes: Bytes = Field(description="Bytes of samples that each node keeps.")
    policy: Annotated[Literal["lru"], choice("lru")] = Field(
        "lru", description="What makes room for others: what was used longest ago."
    )


def _cache(value: Any) -> tuple[CacheTier, ...] | None:
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
    return each(value, CacheTier.model_validate)


def _cache_schema() -> JsonSchema:
    tiers = {"type": "array", "items": CacheTier.model_json_schema(), "minItems": 1, "maxItems": 1}
    return {"anyOf": [tiers, {"const": "none"}, {"type": "null"}]}


class CacheOptions(Section):
    """The keys of caches in ``storage``."""

    cache: Annotated[tuple[CacheTier, ...] | None, Reads(_cache, _cache_schema)] = Field(
        None,
        description="Cache of each node in front of modelled storage: a list of one tier of memory. Real storage has "
        "the caches that are there (page_cache).",
    )


@dataclass(frozen=True)
class NodeCaches(Layer):
    """A cache of ``capacity`` bytes on each node that reads."""

    capacity: int

    name: ClassVar[str] = "cache"
    example: ClassVar[Any] = {"storage": {"cache": [{"tier": "ram", "bytes": "40 kB"}]}}
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
        """Return the caches of a scenario's nodes; None on real storage."""
        tiers = options.cache if isinstance(options, CacheOptions) else None
        return cls(tiers[0].bytes) if tiers and modelled else None

    def wrap(self, storage: Storage, mount: Mount) -> Storage:
        """Put the cache in front of the datasets; checkpoints bypass it."""
        return CachedStorage(storage, mount.shared(), mount) if mount.is_dataset else storage

    def state(self, kernel: Kernel) -> NodeCache:
        """Return the cache of one node."""
        return NodeCache(kernel, self.capacity)

    def reach(self, ask: Ask) -> CalledCache:
        """Return the cache of a node in another process."""
        return CalledCache(ask)

    @property
    def description(self) -> str:
        """The model in words, for a prediction."""
        return (
            f"storage.cache: each node that reads keeps {format_bytes(self.capacity)} of samples in memory, the least "
            "recently used go first (it serves as storage.model=memory does, which is assumed)"
        )

    def changes(self, run: Run) -> Iterator[Change]:
        """Offer twice the memory for samples on each node, unless all samples fit already."""
        from rayio.scenario import derive  # actors, which have this layer too, load nothing of a whole scenario

        if self.capacity < derive.dataset_bytes(run.scenario):
            to = with_keys("storage", cache=self.scaled(run.scenario).storage.cache)
            yield Change(
                "cache × 2", kind="setting", to=to, effort=1, helps=("input",), tried_by=BOTH,
                key=f"storage.cache=[{{tier: ram, bytes: {BYTES.exact(2 * self.capacity)}}}]",
            )  # fmt: skip

    def scaled(self, scenario: Scenario) -> Scenario:
        """Return a scenario with twice the memory for samples."""
        tiers = tuple(tier.model_copy(update={"bytes": 2 * tier.bytes}) for tier in scenario.storage.cache or ())
        return with_keys("storage", cache=tiers)(scenario)

    @property
    def keeps(self) -> str:
        """The source of bytes that storage did not serve."""
        return f"storage.cache: modelled caches of {format_bytes(self.capacity)} on each reading node, empty at first"


class Lru:
    """A set of keys with sizes, within a number of bytes: the least recently used go first. Pure.

    >>> kept = Lru(100)
    >>> [kept.use(key, 40) for key in (1, 2, 1, 3, 1, 2)], kept.nbytes
    ([False, False, True, False, True, False], 80)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        #: Bytes of all keys, never more than ``capacity``.
        self.nbytes = 0
        #: The least recently used comes first.
        self._sizes: OrderedDict[int, int] = OrderedDict()  # finding a dict's first key gets ever slower

    def use(self, key: int, size: int) -> bool:
        """Return True if a key is there; otherwise add it, unless it is larger than the capacity."""
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
        """Remove all keys."""
        self._sizes.clear()
        self.nbytes = 0


class Cache(Arbiter, Protocol):
    """The cache of a node and its memory, possibly in another process; see :class:`NodeCache`."""

    def look(self, who: Who, keys: Sequence[int], sizes: Sequence[int]) -> list[int] | Awaitable[list[int]]:
        """Return ``MISSING``, ``COMING`` or ``THERE`` for each sample; ``who`` reads the missing ones."""

    def came(self, who: Who, keys: Sequence[int]) -> Awaitable[None] | None:
        """Record that ``who`` has read missing samples."""

    def arrived(self, keys: Sequence[int]) -> Awaitable[None]:
        """Wait until none of these samples is being read."""


class _Reading:
    __slots__ = ("arrived", "who")

    def __init__(self, who: Who, arrived: Arrival) -> None:
        self.who = who
        self.arrived = arrived


class NodeCache:
    """One node's cache of ``capacity`` bytes, which all its workers share; see :class:`Cache`.

    One worker at a time reads a sample; the others wait for it. A batch that is read again, because its worker was
    killed, reads its missing samples again.
    """

    def __init__(self, kernel: Kernel, capacity: int) -> None:
        self.kernel = kernel
        self.kept = Lru(capacity)
        self.device = Device(MEMORY_SPEC)
        self.reserve, self.reserve_again = self.device.reserve, self.device.reserve_again
        #: The batch that reads each sample.
        self._coming: dict[int, _Reading] = {}

    def look(self, who: Who, keys: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """See :meth:`Cache.look`."""
        states, mine = [], None
        for key, size in zip(keys, sizes, strict=True):
            is_there = self.kept.use(key, size)
            reading = self._coming.get(key)
            if reading is None and not is_there:
                mine = mine or _Reading(who, self.kernel.future("a sample that another reader of the node reads"))
                self._coming[key] = reading = mine
            states.append(THERE if reading is None else MISSING if reading.who == who else COMING)
        return states

    def came(self, who: Who, keys: Sequence[int]) -> None:
        """Record that a batch has read samples, and wake the batches that wait for them."""
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
        """Begin empty, for a new node: the workers of the old one are gone."""
        self.kept.clear()
        coming, self._coming = self._coming, {}
        for reading in coming.values():
            if not reading.arrived.done():
                reading.arrived.set_result(None)


class CalledCache(CalledDevice):
    """The cache of a node in another process."""

    async def look(self, who: Who, keys: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """See :meth:`Cache.look`."""
        states: list[int] = await self.ask("look", who, keys, sizes)
        return states

    async def came(self, who: Who, keys: Sequence[int]) -> None:
        """See :meth:`Cache.came`."""
        await self.ask("came", who, keys)

    async def arrived(self, keys: Sequence[int]) -> None:
        """See :meth:`Cache.arrived`."""
        await self.ask("arrived", keys)


class CachedStorage:
    """A role's access to the dataset through its node's cache."""

    def __init__(self, storage: Storage, cache: Cache, mount: Mount) -> None:
        self.storage = storage
        self.cache = cache
        self.memory = ModelStorage(
            cache, MEMORY_SPEC, _OfMemory(), mount.clock, io_depth=mount.io_depth, is_itemised=mount.is_itemised
        )

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Read the missing samples from storage, then the rest from memory."""
        who, samples = requests.address, requests.samples
        assert samples is not None
        reply = self.cache.look(who, samples.keys, samples.nbytes)
        states = reply if isinstance(reply, list) else await reply
        missing = [place for place, state in enumerate(states) if state == MISSING]
        if not missing:
            return await self._remembered(requests, samples, states, load)
        is_whole = len(missing) == len(states)
        wanted = requests if is_whole else samples.requests(np.array(missing))._replace(reader=requests.reader)
        served = await self.storage.read(wanted, load)
        if (recorded := self.cache.came(who, [samples.keys[place] for place in missing])) is not None:
            await recorded
        fetched = Moved(served.nbytes, served.nbytes, None)
        if is_whole:
            return served._replace(moved=fetched)
        rest = samples.requests(np.array([place for place, state in enumerate(states) if state != MISSING]))
        remembered = await self._remembered(rest, samples, states, load)
        assert remembered.moved is not None
        return Served(
            None, served.opens + remembered.opens, served.requests + remembered.requests,
            served.nbytes + remembered.nbytes, issued=_joined(served.issued, remembered.issued), retried=served.retried,
            moved=fetched + remembered.moved, delays=served.delays, skipped=served.skipped,
        )  # fmt: skip

    async def _remembered(
        self, requests: Requests, samples: Divisible, states: Sequence[int], load: Callable[[Opener], T]
    ) -> Served[T | None]:
        """Read from memory, after all reads by other batches."""
        if COMING in states:
            coming = [key for key, state in zip(samples.keys, states, strict=True) if state == COMING]
            await self.cache.arrived(coming)
        served = await self.memory.read(requests, load)
        return served._replace(moved=Moved(served.nbytes, 0, None))

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write without the cache."""
        return await self.storage.write(path, num_bytes, request_bytes, fsync=fsync)


class _OfMemory(Latencies):
    """The latencies of requests to memory, which are constant."""

    def __init__(self) -> None:
        super().__init__(lambda key, index: np.full(index.shape, MEMORY.first_byte_median), 0, together=1)

    def sum_of_reads(
        self, address: tuple[int, int, int], number: int, latency: Draws | None = None, num_opens: int = 0
    ) -> float:
        return number * MEMORY.first_byte_median


def _joined(first: Issued | None, then: Issued | None) -> Issued | None:
    """Return the requests of two parts of one read; both may have the same file."""
    if first is None or then is None:
        return first or then
    files = list(dict.fromkeys([*first.files, *then.files]))
    number = {path: place for place, path in enumerate(files)}
    rows = np.concatenate([first.rows, then.rows])
    rows["file"] = [number[part.files[file]] for part in (first, then) for file in part.rows["file"].tolist()]
    return Issued(rows, files)
