"""``storage.throttle``: a modelled service that refuses requests above a rate, as S3 does (503 Slow Down).

Requests are made one by one, and repeated after a pause, as a client of S3 makes them. Without refusals a batch takes
as long as in ``model.py``, except for queueing: each request takes its share of the bandwidth when it is served. A
refusal takes its request's time to first byte; pauses and attempts are those of real storage (``retrying.py``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from rayio.kinds import STORAGE_MODELS
from rayio.scenario.change import BOTH, Change, with_keys
from rayio.schema.fields import PerSecond, Section, none_is_null, quantity, whole
from rayio.storage.base import ISSUED, READ, WRITE, Issued, Opener, Places, Requests, Served, Storage
from rayio.storage.itemise import itemise_served, synced
from rayio.storage.layers.gate import Admits, CalledGate, Gate
from rayio.storage.layers.layer import Ask, Kernel, Layer, Mount
from rayio.storage.model import ModelStorage, each_before_a_request
from rayio.storage.stores.retrying import Budget, given_up, in_tries
from rayio.storage.uploads import upload_of
from rayio.units import SECONDS, format_seconds

if TYPE_CHECKING:
    from rayio.scenario.change import Run
    from rayio.scenario.model import Scenario

T = TypeVar("T")

#: Prefixes that there may be: the service keeps a count for each.
MOST_PREFIXES = 1 << 16


class Throttling(Section):
    """Rates of requests above which a modelled service refuses (503), as S3 does, and clients try again.

    The rates are those that Amazon publishes for S3; how a service counts, and when it scales, is assumed.
    """

    reads_per_second: PerSecond = Field(5500.0, description="Reads per second that are served below one prefix.")
    writes_per_second: PerSecond = Field(3500.0, description="Writes per second that are served below one prefix.")
    prefixes: Annotated[int, whole(1, MOST_PREFIXES)] = Field(
        1, description="Prefixes of the names in the bucket, over which requests are spread evenly."
    )
    burst: Annotated[float, quantity(SECONDS, maximum=3600.0)] = Field(
        1.0, description="Seconds' worth of requests that a prefix serves at once after it was idle."
    )
    split_after: Annotated[float | Literal["never"], quantity(SECONDS, positive=True, or_word="never")] = Field(
        1800.0,
        description="Time of refusals after which the service splits a prefix in two, which doubles its rates, and so "
        "on; or never.",
    )


class ThrottleOptions(Section):
    """The keys of throttling in ``storage``."""

    throttle: Annotated[Throttling | None, BeforeValidator(none_is_null)] = Field(
        None,
        description="Rates of requests above which the modelled system refuses, in place of its requests_per_second, "
        "above which requests wait; a request is then made again as of s3:// (max_attempts). None refuses nobody.",
    )


@dataclass(frozen=True)
class Throttle(Layer):
    """The requests per second that each prefix of a service serves, and its growth under load."""

    reads_per_second: float
    writes_per_second: float
    #: Prefixes over which requests are spread evenly.
    prefixes: int = 1
    #: Seconds' worth of requests that a prefix serves at once after it was idle.
    burst_seconds: float = 1.0
    #: Seconds of refusals after which a prefix is split in two; None is never.
    split_seconds: float | None = None
    #: The most attempts of a request, and the seed of the pauses between them.
    attempts: int = 8
    seed: int = 0

    name: ClassVar[str] = "throttle"
    idle_if_real: ClassVar[str] = "storage.throttle: no effect, because it is a limit of modelled storage"
    example: ClassVar[Any] = {"storage": {"throttle": {"reads_per_second": 100}, "max_attempts": 50}}
    options: ClassVar[type[Section]] = ThrottleOptions
    sharing: ClassVar[Literal["", "node", "all"]] = "all"
    needs_places: ClassVar[bool] = True
    fails: ClassVar[str] = "throttling"

    @classmethod
    def of(cls, scenario: Scenario, options: Section | None, *, modelled: bool) -> Throttle | None:
        """Return the rates of a scenario's model, with the most attempts of a request."""
        given = options.throttle if isinstance(options, ThrottleOptions) else None
        if given is None or not modelled:
            return None
        split = None if given.split_after == "never" else given.split_after
        return cls(
            given.reads_per_second, given.writes_per_second, given.prefixes, given.burst, split,
            scenario.storage.max_attempts, scenario.seed,
        )  # fmt: skip

    def rate(self, kind: int) -> float:
        """Return the requests/s of a kind (``READ``, ``WRITE``) that one prefix serves before a split."""
        return self.writes_per_second if kind == WRITE else self.reads_per_second

    @property
    def reads_of_all(self) -> float:
        """Reads per second of all prefixes."""
        return self.prefixes * self.reads_per_second

    def wrap(self, storage: Storage, mount: Mount) -> Storage:
        """Return storage that makes the model's requests one by one; ``storage`` must be the model."""
        assert isinstance(storage, ModelStorage)
        return ThrottledStorage(storage, mount.shared(), self, mount.path)

    def state(self, kernel: Kernel) -> Gate:
        """Return the buckets of all prefixes."""
        return Gate(self)

    def reach(self, ask: Ask) -> CalledGate:
        """Return the buckets in another process."""
        return CalledGate(ask)

    def seconds(self, requests: float) -> Iterator[tuple[str, float]]:
        """Return the seconds of ``requests`` requests at the rate of all prefixes."""
        yield "storage.throttle", requests / (self.prefixes * min(self.reads_per_second, self.writes_per_second))

    @property
    def description(self) -> str:
        """The model in words, for a prediction."""
        split = self.split_seconds
        grown = "" if split is None else f", twice that after {format_seconds(split)} of refusals"
        each = f"{self.reads_per_second:,.15g} reads/s and {self.writes_per_second:,.15g} writes/s"
        where = "a prefix" if self.prefixes == 1 else f"each of {self.prefixes} prefixes"
        return f"storage.throttle: {each} {where}, above it 503{grown} (how S3 counts and scales is assumed)"

    def changes(self, run: Run) -> Iterator[Change]:
        """Offer storage without throttling, and twice the prefixes."""
        yield Change("no throttling", kind="limit", to=with_keys("storage", throttle=None))
        more = run.scenario.storage.throttle.model_copy(update={"prefixes": 2 * self.prefixes})
        yield Change(
            "prefixes × 2", kind="setting", to=with_keys("storage", throttle=more), effort=1,
            key=f"storage.throttle.prefixes={more.prefixes}", helps=("input",), tried_by=BOTH,
        )  # fmt: skip

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Refuse other limits of requests in the modelled system."""
        model = scenario.storage.model
        given = STORAGE_MODELS[model] if isinstance(model, str) and model in STORAGE_MODELS else model
        if not isinstance(model, str) and model.requests_per_second is not None:
            yield "storage.throttle: takes the place of storage.model.requests_per_second; give one of them"
        if getattr(given, "opens_per_second", None) is not None:
            named = f"storage.model={model}" if isinstance(model, str) else "storage.model.opens_per_second"
            yield f"storage.throttle: {named} has a metadata server, where requests wait; leave one of them out"


#: S3's reply to a request above its rate, and the service that replies here.
REFUSAL, SERVICE = "503 SlowDown", "the model of storage"


class _Call(NamedTuple):
    """The requests of one call: seconds to the first byte of each, and until it streams (opens included)."""

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
    """The requests of a call: when each was made first and served (ns), its slot, and the refused attempts."""

    begun: NDArray[np.int64]
    served: NDArray[np.int64]
    slot: NDArray[np.int16]
    retried: Issued | None


class _Retries:
    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int]] = []
        self._files: dict[str, int] = {}

    def add(self, start: int, end: int, file: str, slot: int) -> None:
        self._rows.append((start, end, self._files.setdefault(file, len(self._files)), slot))

    def until(self, now: int | None = None) -> Issued | None:
        """Return all attempts, cut at ``now`` (ns); None if there are none."""
        if not self._rows:
            return None
        rows = np.zeros(len(self._rows), ISSUED)
        rows["start"], rows["end"], rows["file"], rows["slot"] = zip(*self._rows, strict=True)
        if now is not None:
            rows["end"] = np.minimum(rows["end"], now)
        rows["offset"] = -1
        return Issued(rows, list(self._files), (REFUSAL,))


class ThrottledStorage:
    """A role's connections to a modelled service that refuses; ``address`` is the folder's, for errors."""

    def __init__(self, model: ModelStorage, gate: Admits, throttle: Throttle, address: str) -> None:
        self.model = model
        self.gate = gate
        self.throttle = throttle
        self.address = address
        self.budget = Budget(throttle.attempts, throttle.seed)
        self.arbiter, self.spec, self.latencies, self.clock = model.arbiter, model.spec, model.latencies, model.clock
        self.io_depth, self.is_itemised = model.io_depth, model.is_itemised

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Make these requests until all are served; the value is None, because a model has no bytes.

        Raises:
            StorageError: a request was refused in all its attempts.
        """
        address, num_opens, sizes, places, *_ = requests
        if not len(sizes):  # opens alone are not refused
            return await self.model.read(requests, load)
        first_byte, opens = self.latencies.apart(address, len(sizes), self.spec.open, num_opens)
        latency = first_byte if self.spec.open is None else each_before_a_request(opens, first_byte, self.io_depth)
        call = _Call(READ, sum(address), first_byte, latency, sizes, _naming(places), "reading")
        made = await self._make(call, self.io_depth, (slice(None),))
        issued = self._issued(READ, made, sizes, opens, places)
        return Served(None, num_opens, len(sizes), requests.total_bytes, 0, issued, 0, made.retried)

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Make the requests of a file until all are served.

        Raises:
            StorageError: a request was refused in all its attempts.
        """
        upload = upload_of(num_bytes, request_bytes, self.spec.upload_parts)
        sizes = upload.sizes
        first_byte, opens = self.latencies.of_writes(path, len(sizes)), np.zeros(1)
        if self.spec.open is not None:
            opens = self.latencies.of_creation(self.spec.open, path)
        latency = each_before_a_request(opens, first_byte)
        prefix, doing = zlib.crc32(path.encode()), f"writing {num_bytes} bytes"
        call = _Call(WRITE, prefix, first_byte, latency, sizes, lambda _: path, doing)
        made = await self._make(call, upload.depth, upload.stages)
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

    async def _make(self, call: _Call, depth: int, stages: Sequence[slice]) -> _Made:
        """Make requests until all are served: ``stages`` one after another, and ``depth`` of a stage at a time."""
        retries, number = _Retries(), len(call.sizes)
        made = _Made(np.zeros(number, np.int64), np.zeros(number, np.int64), np.zeros(number, np.int16), None)
        for stage in stages:
            await self._make_some(call, depth, range(number)[stage], made, retries)
        return made._replace(retried=retries.until())

    async def _make_some(self, call: _Call, depth: int, some: range, made: _Made, retries: _Retries) -> None:
        clock = self.clock
        last, following = clock.now(), some.start
        #: Events by time: a slot becomes free (request -1), or an attempt of a request.
        due = [(last, slot, -1, 0) for slot in range(min(depth, len(some)))]
        while due:
            time, slot, request, attempt = heappop(due)
            if request < 0 and following == some.stop:
                last = max(last, time)
                continue
            if time > clock.now():
                await clock.sleep_until(time)
            now = clock.now()
            if request < 0:
                request, attempt, following = following, 1, following + 1
                made.begun[request], made.slot[request] = now, slot
            prefix = (call.prefix + request) % self.throttle.prefixes
            admitted = self.gate.admit(now, call.kind, prefix)
            if admitted if isinstance(admitted, bool) else await admitted:
                nbytes = int(call.sizes[request])
                alone = round((float(call.latency[request]) + nbytes / self.spec.connection_bandwidth) * 1e9)
                served = self.arbiter.reserve(now, 1, nbytes, alone)
                made.served[request] = end = served if isinstance(served, int) else await served
                heappush(due, (end, slot, -1, 0))
                continue
            answered, file = now + round(float(call.first_byte[request]) * 1e9), call.file_of(request)
            if (pause := self.budget.pause(attempt, file)) is None:
                await clock.sleep_until(answered)
                raise self._given_up(call, file, attempt, int(made.begun[request]), retries)
            again = answered + round(pause * 1e9)
            retries.add(now, again, file, slot)
            heappush(due, (again, slot, request, attempt + 1))
        if last > clock.now():
            await clock.sleep_until(last)

    def _given_up(self, call: _Call, file: str, attempts: int, begun: int, retries: _Retries) -> Exception:
        now = self.clock.now()
        tries = in_tries(attempts, (now - begun) / 1e9)
        full = "/".join(part for part in (self.address.rstrip("/"), file) if part)
        error = given_up(full, REFUSAL, SERVICE, call.doing, tries, is_busy=True)
        error.retried = retries.until(now)
        return error


def _naming(places: Places | None) -> Callable[[int], str]:
    """Return a function from a request to its file, computed on first use; empty if the format has no places."""
    known: list[tuple[Sequence[str], NDArray[np.int64]]] = []

    def file_of(request: int) -> str:
        if places is None:
            return ""
        if not known:
            files, file, *_ = places()
            known.append((files, file))
        files, file = known[0]
        return files[int(file[request])]

    return file_of
