"""Modelled storage that refuses: requests are made one by one, and again after a pause, as a client of S3 makes them.

Where nothing is refused a batch takes as long as in ``model.py``, but for what requests queue for: each takes its share
of the bandwidth as it is served, and not all of them as the first one arrives. A refusal takes the time to the first
byte of the request that it answers; the pause after it and the number of attempts are those of real storage
(``retrying.py``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rayio.storage.base import ISSUED, READ, WRITE, Clock, Issued, Opener, Places, Requests, Served
from rayio.storage.itemise import itemise_served, synced
from rayio.storage.layers.throttle import Admits, Throttle
from rayio.storage.model import Arbiter, DeviceSpec, Latencies, each_before_a_request, sizes_of_writes
from rayio.storage.stores.retrying import Budget, given_up, in_tries

T = TypeVar("T")

#: What S3 answers to a request above its rate, and who answers it here.
REFUSAL, SERVICE = "503 SlowDown", "the model of storage"


class _Asked(NamedTuple):
    """The requests of one call to storage: seconds to the first byte of each, and until it streams (opens included)."""

    kind: int
    #: The prefix of the first of them; those after it follow in turn.
    prefix: int
    first_byte: NDArray[np.float64]
    latency: NDArray[np.float64]
    sizes: NDArray[np.int64]
    #: The file of each, by its number.
    file_of: Callable[[int], str]
    doing: str


class _Made(NamedTuple):
    """When each request was made first and when it was served (ns), among which others, and what was refused."""

    begun: NDArray[np.int64]
    served: NDArray[np.int64]
    slot: NDArray[np.int16]
    retried: Issued | None


class _Retries:
    """Attempts that were refused, as rows."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int]] = []
        self._files: dict[str, int] = {}

    def add(self, start: int, end: int, file: str, slot: int) -> None:
        """Note an attempt, from its begin to the next one's (ns)."""
        self._rows.append((start, end, self._files.setdefault(file, len(self._files)), slot))

    def until(self, now: int | None = None) -> Issued | None:
        """All of them, none beyond ``now``; None where there are none."""
        if not self._rows:
            return None
        rows = np.zeros(len(self._rows), ISSUED)
        rows["start"], rows["end"], rows["file"], rows["slot"] = zip(*self._rows, strict=True)
        if now is not None:
            rows["end"] = np.minimum(rows["end"], now)
        rows["offset"] = -1
        return Issued(rows, list(self._files), (REFUSAL,))


class ThrottledStorage:
    """One role's connections to a modelled service that refuses; ``address`` is of the folder that it is used for."""

    def __init__(
        self,
        arbiter: Arbiter,
        gate: Admits,
        spec: DeviceSpec,
        throttle: Throttle,
        latencies: Latencies,
        clock: Clock,
        address: str,
        *,
        io_depth: int = 1,
        is_itemised: bool = False,
    ) -> None:
        self.arbiter = arbiter
        self.gate = gate
        self.spec = spec
        self.throttle = throttle
        self.budget = Budget(throttle.attempts, throttle.seed)
        self.latencies = latencies
        self.clock = clock
        self.address = address
        self.io_depth = io_depth
        self.is_itemised = is_itemised

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Make these requests until all are served; answer None, for a model has no bytes.

        Raises:
            StorageError: one of them was refused as often as it may be made.
        """
        address, num_opens, sizes, places, _, _, _ = requests
        first_byte, opens = self.latencies.apart(address, len(sizes), self.spec.open, num_opens)
        latency = first_byte if self.spec.open is None else each_before_a_request(opens, first_byte)
        made = await self._make(_Asked(READ, sum(address), first_byte, latency, sizes, _naming(places), "reading"))
        issued = self._issued(READ, made, sizes, opens, places)
        return Served(None, num_opens, len(sizes), requests.total_bytes, 0, issued, 0, made.retried)

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Make the requests of a file until all are served.

        Raises:
            StorageError: one of them was refused as often as it may be made.
        """
        sizes = sizes_of_writes(num_bytes, request_bytes)
        first_byte, opens = self.latencies.of_writes(path, len(sizes)), np.zeros(1)
        if self.spec.open is not None:
            opens = self.latencies.of_creation(self.spec.open, path)
        latency = each_before_a_request(opens, first_byte)
        prefix, doing = zlib.crc32(path.encode()), f"writing {num_bytes} bytes"
        made = await self._make(_Asked(WRITE, prefix, first_byte, latency, sizes, lambda _: path, doing))
        syncs = 2 if fsync else 0
        issued = self._issued(WRITE, made, sizes, opens, None)
        if issued is not None:
            issued = synced(Issued(issued.rows, [path]), syncs)
        return Served(None, 1, len(sizes), num_bytes, syncs, issued, 0, made.retried)

    def _issued(
        self, kind: int, made: _Made, sizes: NDArray[np.int64], opens: NDArray[np.float64], places: Places | None
    ) -> Issued | None:
        if not self.is_itemised:
            return None
        return itemise_served(kind, made.begun, made.served, made.slot, sizes, opens, places=places)

    async def _make(self, asked: _Asked) -> _Made:
        """Make requests in order, at most ``io_depth`` at a time, each until it is served."""
        clock, retries, number = self.clock, _Retries(), len(asked.sizes)
        made = _Made(np.zeros(number, np.int64), np.zeros(number, np.int64), np.zeros(number, np.int16), None)
        last, following = clock.now(), 0
        #: What comes next, by time: a slot becomes free (request -1), or a request is made for the so manieth time.
        due = [(last, slot, -1, 0) for slot in range(min(self.io_depth, number))]
        while due:
            time, slot, request, attempt = heappop(due)
            if request < 0 and following == number:
                last = max(last, time)
                continue
            if time > clock.now():
                await clock.sleep_until(time)
            now = clock.now()
            if request < 0:
                request, attempt, following = following, 1, following + 1
                made.begun[request], made.slot[request] = now, slot
            prefix = (asked.prefix + request) % self.throttle.prefixes
            admitted = self.gate.admit(now, asked.kind, prefix)
            if admitted if isinstance(admitted, bool) else await admitted:
                nbytes = int(asked.sizes[request])
                alone = round((float(asked.latency[request]) + nbytes / self.spec.connection_bandwidth) * 1e9)
                served = self.arbiter.reserve(now, 1, nbytes, alone)
                made.served[request] = end = served if isinstance(served, int) else await served
                heappush(due, (end, slot, -1, 0))
                continue
            answered, file = now + round(float(asked.first_byte[request]) * 1e9), asked.file_of(request)
            if (pause := self.budget.pause(attempt, file)) is None:
                await clock.sleep_until(answered)
                raise self._given_up(asked, file, attempt, int(made.begun[request]), retries)
            again = answered + round(pause * 1e9)
            retries.add(now, again, file, slot)
            heappush(due, (again, slot, request, attempt + 1))
        if last > clock.now():
            await clock.sleep_until(last)
        return made._replace(retried=retries.until())

    def _given_up(self, asked: _Asked, file: str, attempts: int, begun: int, retries: _Retries) -> Exception:
        """Make the error of a request that was refused as often as it may be made."""
        now = self.clock.now()
        tries = in_tries(attempts, (now - begun) / 1e9)
        full = "/".join(part for part in (self.address.rstrip("/"), file) if part)
        error = given_up(full, REFUSAL, SERVICE, asked.doing, tries, is_busy=True)
        error.retried = retries.until(now)
        return error


def _naming(places: Places | None) -> Callable[[int], str]:
    """Name the file of each request, once it is asked for; empty where the format does not say."""
    found: list[tuple[list[str], NDArray[np.int64]]] = []

    def file_of(request: int) -> str:
        if places is None:
            return ""
        if not found:
            files, file, *_ = places()
            found.append((files, file))
        files, file = found[0]
        return files[int(file[request])]

    return file_of
