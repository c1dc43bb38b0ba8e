"""``loader.file_access: collective``: one rank of each group reads a batch, and passes what it read on to the others.

Ranks that read the same samples (``loader.partition: replicated``) are divided into as many groups as there are
aggregators. The workers of a group's first rank read from storage; those of the others wait for the bytes. So MPI-IO's
collective reads and a broadcast of one reader work. Bytes and requests of storage fall by the size of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Literal, NamedTuple, TypeVar, cast

import numpy as np

from rayio.errors import DataError
from rayio.scenario.change import Change, with_keys
from rayio.scenario.topology import PerNode, node_of
from rayio.schema.fields import Section
from rayio.storage.base import Delay, Opener, Requests, Served, Storage
from rayio.storage.layers.layer import Arrival, Kernel, Layer, Mount
from rayio.storage.layers.network import Network, NetworkSpec
from rayio.storage.stores.counted import CountedFile, Traffic

if TYPE_CHECKING:
    from rayio.scenario.change import Run
    from rayio.scenario.model import Scenario

T = TypeVar("T")

#: What a reader got of files: the bytes at an offset, by path, offset and length; of offset -1 the file's size.
Bytes = dict[tuple[str, int, int], Any]

#: Arrivals of batches at nodes that a board remembers.
ARRIVALS_KEPT = 1 << 14
#: Epochs of which a board knows the batches that all ranks have.
EPOCHS_KEPT = 4


class Step(NamedTuple):
    """A batch of a group: its first rank, epoch and step."""

    leader: int
    epoch: int
    step: int


@dataclass(frozen=True)
class Collective(Layer):
    """Groups of ranks with one that reads."""

    #: Ranks of a group, and ranks of a node.
    group: int
    ranks_per_node: PerNode
    #: Batches that a rank's workers may be ahead.
    window: int
    #: Network between nodes, in bytes per second and seconds; None is free.
    bandwidth: float | None = None
    latency: float = 0.0

    name: ClassVar[str] = "collective"
    example: ClassVar[Any] = {
        "loader": {"file_access": "collective", "partition": "replicated", "aggregators": 1},
        "cluster": {"nodes": 2, "ranks_per_node": 1, "nic_bandwidth": "10 MB/s"},
    }
    causes: ClassVar[Mapping[str, str]] = {"broadcast": "bytes on their way from the rank that read them"}
    sharing: ClassVar[Literal["", "node", "all"]] = "all"

    @classmethod
    def of(cls, scenario: Scenario, options: Section | None, *, modelled: bool) -> Collective | None:
        """Return the groups of a scenario whose files are read collectively."""
        loader, cluster = scenario.loader, scenario.cluster
        aggregators = getattr(loader.file_access_options, "aggregators", None)
        if loader.file_access != cls.name or not aggregators or cluster.world_size % aggregators:
            return None
        window = max(1, loader.max_workers) * loader.prefetch_factor
        group = cluster.world_size // aggregators
        return cls(group, cluster.on_nodes, window, cluster.nic_bandwidth, cluster.nic_latency)

    def wrap(self, storage: Storage, mount: Mount) -> Storage:
        """Let the first rank of a group read the datasets for the others."""
        return CollectiveStorage(storage, self, mount) if mount.is_dataset and self.group > 1 else storage

    def state(self, kernel: Kernel) -> Board:
        """Return the board on which the bytes of all groups are passed on."""
        return Board(kernel, self.group - 1, self.window, NetworkSpec(self.bandwidth, self.latency))

    def changes(self, run: Run) -> Iterator[Change]:
        """Offer a network without limits, and a rank of each node that reads for it."""
        cluster, loader = run.scenario.cluster, run.scenario.loader
        if cluster.has_network and not cluster.is_crossed:
            yield Change(
                "network = ∞", kind="limit", to=with_keys("cluster", nic_bandwidth=None, nic_latency=0.0),
                removes=(*self.causes,), helps=(*self.causes,),
            )  # fmt: skip
        nodes = cluster.nodes
        if isinstance(self.ranks_per_node, int) and self.group > self.ranks_per_node:
            options = loader.file_access_options.model_copy(update={"aggregators": nodes})
            yield Change(
                f"aggregators {nodes}", kind="setting", to=with_keys("loader", file_access_options=options),
                key=f"loader.aggregators={nodes}", helps=(*self.causes,),
            )  # fmt: skip

    def node_beyond(self, rank: int, leader: int) -> int | None:
        """Return the node of a rank if bytes cross the network to it; None within a node."""
        node = node_of(rank, self.ranks_per_node)
        has_network = self.bandwidth is not None or self.latency > 0
        return node if has_network and node != node_of(leader, self.ranks_per_node) else None


@dataclass(slots=True)
class _Record:
    content: Bytes | None
    #: Places of the samples that the leader skipped after errors: its group lacks them.
    skipped: tuple[int, ...] = ()
    taken: set[int] = field(default_factory=set)


class Board:
    """Batches that were read and not yet passed on to all other ranks of their group."""

    def __init__(self, kernel: Kernel, followers: int, window: int, network: NetworkSpec) -> None:
        self.kernel = kernel
        #: Interfaces of the nodes that get bytes: each node gets a batch once, and passes it on while it comes.
        self._network = Network(network)
        self._arrivals: dict[tuple[Step, int], int] = {}
        self.followers = followers
        self.window = window
        self._records: dict[Step, _Record] = {}
        self._waiting: dict[Step, Arrival] = {}
        #: By leader and epoch: the latest step that it read, and the steps that all have taken; evaluations are epochs
        #: amid others.
        self._latest: dict[tuple[int, int], int] = {}
        self._done: dict[tuple[int, int], set[int]] = {}

    def publish(self, leader: int, epoch: int, step: int, content: Bytes | None, skipped: tuple[int, ...] = ()) -> None:
        """Pass a batch on; every rank that waits for it, or for one that is lost, continues."""
        key = Step(leader, epoch, step)
        if self._is_done(key):  # it was read again, because its worker was killed
            return
        self._latest[leader, epoch] = max(self._latest.get((leader, epoch), -1), step)
        self._records.setdefault(key, _Record(content, skipped))
        for waited in [waited for waited in self._waiting if waited == key or self._is_lost(waited)]:
            self._waiting.pop(waited).set_result(None)

    async def obtain(self, rank: int, leader: int, epoch: int, step: int) -> tuple[bool, Bytes | None, tuple[int, ...]]:
        """Wait for a batch; return whether it is there, its bytes and the places of its skipped samples.

        If it is gone, the rank must read it by itself.
        """
        key = Step(leader, epoch, step)
        while (record := self._records.get(key)) is None:
            if self._is_done(key) or self._is_lost(key):
                return False, None, ()
            if key not in self._waiting:
                self._waiting[key] = self.kernel.future(f"step {step} of epoch {epoch}, which rank {leader} reads")
            await self._waiting[key]
        record.taken.add(rank)
        if len(record.taken) == self.followers:
            del self._records[key]
            self._add_done(leader, epoch, step)
        return True, record.content, record.skipped

    def send(self, now: int, step: Step, node: int, nbytes: int) -> int:
        """Return the time at which a batch that is passed on now has come to a node, after those before it (ns)."""
        if (known := self._arrivals.get((step, node))) is not None:
            return max(known, now)
        self._arrivals[step, node] = arrival = self._network.enter(now, node, nbytes)
        if len(self._arrivals) > ARRIVALS_KEPT:
            del self._arrivals[next(iter(self._arrivals))]
        return arrival

    def _add_done(self, leader: int, epoch: int, step: int) -> None:
        self._done.setdefault((leader, epoch), set()).add(step)
        for old in [known for known in self._done if known[0] == leader][:-EPOCHS_KEPT]:
            del self._done[old]

    def _is_done(self, key: Step) -> bool:
        return key.step in self._done.get((key.leader, key.epoch), ())

    def _is_lost(self, key: Step) -> bool:
        """Return True if the leader is so far ahead that it read this batch, and it is not there."""
        return key not in self._records and key.step + self.window < self._latest.get((key.leader, key.epoch), -1)


class CollectiveStorage:
    """Storage of a rank whose group reads together."""

    def __init__(self, storage: Storage, layer: Collective, mount: Mount) -> None:
        self.storage = storage
        self.layer = layer
        self.clock = mount.clock
        self.board = mount.shared()

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Read and pass on, or wait for the bytes."""
        rank, epoch, step = requests.address
        leader = rank - rank % self.layer.group
        if rank == leader:
            content: Bytes = {}
            served = await self.storage.read(requests, lambda opener: load(_recording(opener, content)))
            passed = content if served.value is not None else None
            answer = self.board.publish(leader, epoch, step, passed, served.skipped)
            if answer is not None:
                await answer
            return served
        is_there, content_or_none, skipped = await self.board.obtain(rank, leader, epoch, step)
        if not is_there:
            return await self.storage.read(requests, load)
        if content_or_none is not None:
            known: Bytes = content_or_none
            nothing = Requests(requests.address, 0, np.empty(0, np.int64))  # no sample is read again, so none fails
            served = await self.storage.read(nothing, lambda _: load(_replaying(known)))
            return served._replace(skipped=skipped)
        if (node := self.layer.node_beyond(rank, leader)) is None:
            return Served(None, 0, 0, 0, skipped=skipped)
        begun = self.clock.now()
        arrival = self.board.send(begun, Step(leader, epoch, step), node, requests.total_bytes)
        await self.clock.sleep_until(arrival if isinstance(arrival, int) else await arrival)
        ended = self.clock.now()
        delays = (Delay(begun, ended, "broadcast"),) if ended > begun else ()
        return Served(None, 0, 0, 0, delays=delays, skipped=skipped)

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write without the group."""
        return await self.storage.write(path, num_bytes, request_bytes, fsync=fsync)


class _Recording(CountedFile):
    """A file whose bytes are recorded as they are read."""

    __slots__ = ("file", "path", "record")

    def __init__(self, file: CountedFile, path: str, record: Bytes) -> None:
        self.file, self.path, self.record = file, path, record
        super().__init__(file.shown, file.traffic, path)
        record[path, -1, 0] = file.size

    @property
    def size(self) -> int:
        return self.file.size

    def fetch(self, position: int, buffer: Any) -> int:
        view = memoryview(buffer)
        length = self.file.fetch(position, view)
        self.record[self.path, position, view.nbytes] = bytes(view[:length])
        return length

    def close(self) -> None:
        self.file.close()
        super().close()


class _Replayed(CountedFile):
    """A file of recorded bytes."""

    __slots__ = ("path", "record")

    def __init__(self, path: str, record: Bytes) -> None:
        super().__init__(path, Traffic(), path)
        self.path, self.record = path, record

    @property
    def size(self) -> int:
        return int(self.record[self.path, -1, 0])

    def fetch(self, position: int, buffer: Any) -> int:
        view = memoryview(buffer)
        known = self.record.get((self.path, position, view.nbytes))
        if known is None:
            raise DataError(f"{self.path}: {view.nbytes} bytes at byte {position} were not read by the aggregator")
        view[: len(known)] = known
        return len(known)


def _recording(opener: Opener, content: Bytes) -> Opener:
    return lambda path, *kept: _as_file(_Recording(cast(CountedFile, opener(path, *kept)), path, content))


def _replaying(content: Bytes) -> Opener:
    def opened(path: str, *_: Any) -> BinaryIO:
        if (path, -1, 0) not in content:
            raise DataError(f"{path}: was not read by the aggregator")
        return _as_file(_Replayed(path, content))

    return opened


def _as_file(file: CountedFile) -> BinaryIO:
    return cast(BinaryIO, file)
