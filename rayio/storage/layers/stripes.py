"""``storage.model.servers``: files striped over object servers, each with a queue, and what random requests cost.

The model of storage (``rayio/storage/model.py``) is one pipe, in which all files are alike. Behind it, this layer has a
queue without gaps for each server, first come, first served. A batch's requests are divided into stripes; each server
that has some is busy for their bytes, and longer for requests that continue no other. The
batch is served when the pipe and all of its servers have served it.

So one file of one stripe gives what one server does, however many clients read it; many files spread over all servers,
as evenly as balls thrown into bins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.scenario.change import BOTH, Change, with_keys
from rayio.scenario.servers import Servers
from rayio.schema.fields import Section
from rayio.storage.base import (
    Ahead,
    Delay,
    Opener,
    Placed,
    Requests,
    RequestTable,
    Served,
    Storage,
    differs_from_last,
    from_front,
)
from rayio.storage.itemise import in_flight
from rayio.storage.layers.layer import Kernel, Layer, Mount
from rayio.storage.model import REQUESTS_PER_STEP_BITS, Arbiter
from rayio.storage.uploads import upload_of
from rayio.units import format_bytes, format_rate

if TYPE_CHECKING:
    from rayio.scenario.change import Run
    from rayio.scenario.model import Scenario

T = TypeVar("T")

#: The most files whose places a process keeps in memory.
MOST_FILES = 1 << 16
#: The most open files of which a node knows where their last requests ended.
MOST_HANDLES = 1 << 18


class Load(NamedTuple):
    """The work of one batch for one server: its number, a file, and the time (ns) that the server is busy."""

    server: int
    file: int
    busy: int


@dataclass(frozen=True)
class Stripes(Layer):
    """The object servers of a modelled file system, and the seed of the places of files."""

    servers: Servers
    seed: int

    name: ClassVar[str] = "stripes"
    example: ClassVar[Any] = {
        "storage": {
            "model": {
                "first_byte": "10 us",
                "connection_bandwidth": "1 GB/s",
                "bandwidth": "1 GB/s",
                "servers": {"number": 2, "bandwidth": "1 MB/s", "random": "1 ms"},
            }
        }
    }
    causes: ClassVar[Mapping[str, str]] = {
        "server": "busy servers of the file system",
        "random access": "requests that continue no other",
    }
    sharing: ClassVar[Literal["", "node", "all"]] = "all"
    needs_places: ClassVar[bool] = True
    is_foreseen: ClassVar[bool] = True

    @classmethod
    def of(cls, scenario: Scenario, options: Section | None, *, modelled: bool) -> Stripes | None:
        """Return the servers of a scenario's model, if it has any."""
        servers = scenario.storage.servers
        return None if servers is None or not modelled else cls(servers, scenario.seed)

    def wrap(self, storage: Storage, mount: Mount) -> Storage:
        """Return storage whose requests also wait for servers."""
        return StripedStorage(storage, self, mount)

    def state(self, kernel: Kernel) -> ObjectServers:
        """Return the queues of all servers."""
        return ObjectServers(self.servers)

    def changes(self, run: Run) -> Iterator[Change]:
        """Offer storage without separate servers, and four times the stripes."""
        if (model := run.modelled) is None:
            return
        causes, without = (*self.causes,), model.model_copy(update={"servers": None})
        yield Change(
            "servers = ∞", kind="limit", to=with_keys("storage", model=without, stripe_count=None, stripe_size=None),
            removes=causes, helps=causes,
        )  # fmt: skip
        more = min(4 * self.servers.stripe_count, self.servers.number)
        if more > self.servers.stripe_count:
            yield Change(
                f"stripe_count {more}", kind="setting", to=with_keys("storage", stripe_count=more),
                key=f"storage.stripe_count={more}", helps=("input", "server"), tried_by=BOTH,
            )  # fmt: skip

    @property
    def description(self) -> str:
        """The model in words, for a prediction."""
        servers = self.servers
        each = f"{servers.number} servers of {format_rate(servers.bandwidth)}"
        return f"{each}, files striped over {servers.stripe_count} in pieces of {format_bytes(servers.stripe_size)}"

    def pieces(
        self, first: NDArray[np.int64], nbytes: NDArray[np.int64], of_file: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the bytes of requests by file and stripe, counted from the file's first server.

        ``first`` are offsets, and ``of_file`` the numbers of each file's first request. The result has a row for each
        file, and a number for each of its ``stripe_count`` servers.

        >>> stripes = Stripes(Servers(number=8, bandwidth=1e9, stripe_count=2, stripe_size=10), seed=1)
        >>> stripes.pieces(np.array([5, 0]), np.array([20, 10]), np.array([0])).tolist()
        [[20, 10]]
        """
        size, count = self.servers.stripe_size, self.servers.stripe_count
        taken = nbytes[:, np.newaxis]
        if count > 1:
            ends = np.concatenate([first, first + nbytes])
            # Bytes of each server in front of each offset: those of whole turns, and of the last one.
            turns, rest = np.divmod(ends, size * count)
            before = turns[:, None] * size + np.clip(rest[:, None] - size * np.arange(count), 0, size)
            taken = before[len(first) :] - before[: len(first)]
        summed: NDArray[np.int64] = np.add.reduceat(taken, of_file)
        return summed


@lru_cache(maxsize=MOST_FILES)
def file_key(seed: int, path: str) -> int:
    """Return a random word of a file: the draw of its first server, and its name among locks."""
    return seeds.key(seed, f"stripes/{path}")


class ObjectServers:
    """The queues of all servers, and which node used each file last."""

    def __init__(self, servers: Servers) -> None:
        self._free = [0] * servers.number
        self._lock, self._cold = round(servers.lock * 1e9), round(servers.cold * 1e9)
        #: The last node of each file on each server; empty if neither locks nor first accesses take time.
        self._last: dict[tuple[int, int], int] = {}

    def reserve(self, now: int, node: int, loads: Sequence[tuple[int, int, int]]) -> int:
        """Return the time (ns) at which all servers have served these :class:`Load`, which arrive ``now``.

        >>> servers = ObjectServers(Servers(number=2, bandwidth=1e9))
        >>> servers.reserve(0, 0, [(0, 7, 100)]), servers.reserve(0, 1, [(0, 7, 100), (1, 8, 50)])
        (100, 200)
        """
        served, free = now, self._free
        for server, file, busy in loads:
            if self._lock or self._cold:
                last = self._last.get((server, file))
                busy += self._cold if last is None else self._lock * (last != node)
                self._last[server, file] = node
            free[server] = end = max(free[server], now) + busy
            served = max(served, end)
        return served


class ServersPort(Protocol):
    """Servers, possibly in another process."""

    def reserve(self, now: int, node: int, loads: Sequence[tuple[int, int, int]]) -> int | Awaitable[int]:
        """See :meth:`ObjectServers.reserve`; servers of this process reply at once."""


class Waiting(NamedTuple):
    """The servers' part of a read that is known before it begins."""

    servers: ServersPort
    node: int
    loads: list[Load]
    #: The time (ns) that random requests wait longer.
    random: int

    def begin(self, now: int, ends: int) -> list[tuple[str, int]]:
        """See :class:`rayio.storage.base.Behind`."""
        served = self.servers.reserve(now, self.node, self.loads)
        assert isinstance(served, int)
        return [("random access", ends + self.random), ("server", served)]


class StripedStorage:
    """A node's access to striped files; it keeps where each reader's requests ended, to know which continue them."""

    def __init__(self, storage: Storage, stripes: Stripes, mount: Mount) -> None:
        self.storage, self.stripes = storage, stripes
        self.clock, self.node, self.path, self.io_depth = mount.clock, mount.node, mount.path, mount.io_depth
        self.state: ServersPort = mount.shared()
        #: Of files that stay open: where a reader's last request ended, the latest file last. Each reader has its own
        #: handle, so what others read does not help it.
        self._ends: dict[tuple[str, int], int] = {}

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Read; then wait for requests at random places, and for the servers."""
        places = requests.places
        placed = Placed([""], np.zeros(len(requests.nbytes), np.int64), None) if places is None else Placed(*places())
        loads, waiting = self._loads(placed, requests.nbytes, [0, len(requests.nbytes)], [requests.reader])
        rank, epoch, step = requests.address
        key = seeds.key(self.stripes.seed, "random", rank, epoch)
        (seconds,) = self._random(key, [step], waiting, self.io_depth)
        return await self._through(loads[0], seconds, self.storage.read(requests, load))

    @property
    def arbiter(self) -> Arbiter:
        """The pipe in front of the servers, on the virtual clock."""
        arbiter: Arbiter = self.storage.arbiter  # type: ignore[attr-defined]
        return arbiter

    def ahead(self, address: tuple[int, int, int], table: RequestTable, readers: Sequence[str]) -> Ahead:
        """See :meth:`rayio.storage.model.ModelStorage.ahead`."""
        rank, epoch, first = address
        known: Ahead = self.storage.ahead(address, table, readers)  # type: ignore[attr-defined]
        begin, end = table.edges[0], table.edges[-1]
        edges, nbytes = [edge - begin for edge in table.edges], table.nbytes[begin:end]
        steps = range(first, first + len(known.calls))
        placed = Placed([], nbytes, None) if begin == end else table.placed
        loads, waiting = self._loads(placed, nbytes, edges, [readers[step % len(readers)] for step in steps])
        key = seeds.key(self.stripes.seed, "random", rank, epoch)
        seconds = self._random(key, steps, waiting, self.io_depth)
        each = zip(loads, seconds, strict=True)
        return known._replace(behind=[Waiting(self.state, self.node, mine, round(s * 1e9)) for mine, s in each])

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write; then wait for the servers of the file."""
        sizes = upload_of(num_bytes, request_bytes, 1).sizes
        loads, waiting = self._loads(from_front(path, sizes), sizes, [0, len(sizes)], [""])
        (seconds,) = self._random(seeds.key(self.stripes.seed, f"random/{path}"), [0], waiting, 1)
        writing = self.storage.write(path, num_bytes, request_bytes, fsync=fsync)
        return await self._through(loads[0], seconds, writing)

    async def _through(self, loads: Sequence[Load], seconds: float, moving: Awaitable[Served[T]]) -> Served[T]:
        reserved = self.state.reserve(self.clock.now(), self.node, loads)
        from asyncio import ensure_future  # every command that checks a scenario imports this file

        pending = reserved if isinstance(reserved, int) else ensure_future(reserved)
        served = await moving
        delays, since = [], self.clock.now()
        served_at = pending if isinstance(pending, int) else await pending
        for cause, until in (("random access", since + round(seconds * 1e9)), ("server", served_at)):
            if until > (since := self.clock.now()):
                await self.clock.sleep_until(until)
                delays.append(Delay(since, self.clock.now(), cause))
        return served._replace(delays=(*served.delays, *delays))

    def _random(self, key: int, steps: Sequence[int], waiting: Sequence[NDArray[np.int64]], depth: int) -> list[float]:
        """Return the seconds by which the ``waiting`` requests of each step take longer, ``depth`` at a time."""
        if self.stripes.servers.random.expected <= 0:
            return [0.0] * len(waiting)
        index = [(step << REQUESTS_PER_STEP_BITS) + mine for step, mine in zip(steps, waiting, strict=True)]
        drawn = self.stripes.servers.random.draw(key, np.concatenate(index))
        edges = accumulate(map(len, waiting), initial=0)
        each = [drawn[begin:end] for begin, end in pairwise(edges)]
        return [in_flight(mine, depth) for mine in each]

    def _loads(
        self, placed: Placed, nbytes: NDArray[np.int64], edges: Sequence[int], readers: Sequence[str]
    ) -> tuple[list[list[Load]], list[NDArray[np.int64]]]:
        """Return the work of each server, and the numbers of the requests that continue no other, for each of steps.

        Those of step ``i`` are from ``edges[i]`` to ``edges[i + 1]``, by ``readers[i]``. No two steps share a file
        number.
        """
        if not len(nbytes):
            return [[] for _ in readers], [nbytes for _ in readers]
        opened = differs_from_last(placed.file)
        if placed.opening is not None:
            opened[:] = False
            opened[placed.opening] = True
        by_file = np.argsort(placed.file, kind="stable")
        file, sizes = placed.file[by_file], nbytes[by_file]
        is_new = differs_from_last(file)
        of_file = np.flatnonzero(is_new)
        last = np.concatenate([of_file[1:], [len(file)]]) - 1
        words = [
            file_key(self.stripes.seed, f"{self.path}/{placed.files[number]}") for number in file[of_file].tolist()
        ]
        ends = np.cumsum(sizes) if placed.offset is None else placed.offset[by_file] + sizes
        if placed.offset is None:
            ends -= np.repeat(ends[of_file] - sizes[of_file], last - of_file + 1)
        first, before = ends - sizes, np.concatenate([[-1], ends[:-1]])
        if placed.opening is not None:
            step_of = np.searchsorted(edges, of_file, side="right") - 1
            each = zip(of_file.tolist(), step_of.tolist(), words, ends[last].tolist(), strict=True)
            for begin, step, word, end in each:
                before[begin] = self._ends.get((readers[step], word), -1)
                self._keep((readers[step], word), end)
        jumps = np.flatnonzero((first != before) | opened[by_file])
        waiting = by_file[jumps]
        cuts = np.searchsorted(jumps, edges).tolist()
        waits = [waiting[begin:end] - edge for edge, (begin, end) in zip(edges, pairwise(cuts), strict=False)]
        loads, number = self._work(words, first, sizes, of_file, jumps, np.cumsum(is_new) - 1)
        cuts = np.searchsorted(of_file[number], edges).tolist()
        return [loads[begin:end] for begin, end in pairwise(cuts)], waits

    def _work(
        self, words: list[int], first: NDArray[np.int64], sizes: NDArray[np.int64], of_file: NDArray[np.int64],
        jumps: NDArray[np.int64], number: NDArray[np.int64],
    ) -> tuple[list[Load], NDArray[np.int64]]:  # fmt: skip
        """Return the work of each server, and the number of the file of each.

        ``number`` is each request's file, and ``jumps`` are the requests that seek.
        """
        servers = self.stripes.servers
        count = servers.stripe_count
        pieces = self.stripes.pieces(first, sizes, of_file)
        sought = number[jumps] * count + first[jumps] // servers.stripe_size % count
        seeks = np.bincount(sought, minlength=pieces.size).reshape(pieces.shape)
        busy = (pieces / servers.bandwidth + seeks * servers.seek) * 1e9
        rows, places = np.nonzero(pieces + seeks)
        each = zip(rows.tolist(), places.tolist(), busy[rows, places].tolist(), strict=True)
        return [Load((words[row] + place) % servers.number, words[row], round(ns)) for row, place, ns in each], rows

    def _keep(self, handle: tuple[str, int], end: int) -> None:
        """Remember where the last request of a reader to a file ended; the oldest are forgotten."""
        self._ends.pop(handle, None)
        self._ends[handle] = end
        if len(self._ends) > MOST_HANDLES:
            del self._ends[next(iter(self._ends))]
