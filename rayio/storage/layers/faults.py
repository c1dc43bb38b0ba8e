"""``storage.faults``: storage that stalls, answers with errors and has slow files, real or modelled.

Faults are drawn at a batch's address (rank, epoch, step) for each of its samples, and at the path of a file that is
written, so they are the same on every engine. Times of a run count from the first call to storage. Faults are added to
the time of storage, inside the span ``read`` or ``write``, and are charged to the cause ``fault``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.errors import StorageError
from rayio.kinds import LOADERS
from rayio.schema.fields import Section
from rayio.storage.base import Delay, Opener, Requests, Served, Storage
from rayio.storage.itemise import in_flight
from rayio.storage.layers.fault_keys import Failure, FaultKeys, FaultOptions
from rayio.storage.layers.layer import Kernel, Layer, Mount
from rayio.storage.stores.retrying import Budget, given_up, in_tries
from rayio.units import format_seconds

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

T = TypeVar("T")

#: The samples of a step are drawn at separate indices: 2**24 for each step.
SAMPLES_PER_STEP_BITS = 24
_ONE = np.zeros(1, np.int64)


class Beginning:
    """The time of a run's first call to storage, for all of its workers and checkpoint writers."""

    def __init__(self) -> None:
        self._since: int | None = None

    def since(self, now: int) -> int:
        """Return the time of the first call to storage; ``now`` if this is the first (ns)."""
        self._since = now if self._since is None else self._since
        return self._since


@dataclass(frozen=True)
class Faults(Layer):
    """Stalls, errors and slow files, the most attempts of a sample, and the seed."""

    keys: FaultKeys
    attempts: int
    seed: int

    name: ClassVar[str] = "faults"
    example: ClassVar[Any] = {"storage": {"faults": {"stalls": [{"rate": 0.1, "seconds": "20 ms"}]}}}
    options: ClassVar[type[Section]] = FaultOptions
    causes: ClassVar[Mapping[str, str]] = {"fault": "stalls, errors and slow files (storage.faults)"}
    fails: ClassVar[str] = "storage.faults"

    @classmethod
    def of(cls, scenario: Scenario, options: Section | None, *, modelled: bool) -> Faults | None:
        """Return the faults of a scenario."""
        keys = options.faults if isinstance(options, FaultOptions) else None
        if not isinstance(keys, FaultKeys) or not (keys.stalls or keys.errors or keys.slow_files):
            return None
        return cls(keys, scenario.storage.max_attempts, scenario.seed)

    @property
    def sharing(self) -> Literal["", "all"]:  # type: ignore[override]
        """All share the beginning of the run, if a fault has a time."""
        times = [*(stall.at for stall in self.keys.stalls), *(error.at for error in self.keys.errors)]
        return "all" if any(at is not None for at in times) else ""

    @property
    def needs_files(self) -> bool:  # type: ignore[override]
        """Return True if it needs the files of a batch."""
        return self.keys.slow_files is not None

    def state(self, kernel: Kernel) -> Beginning:
        """Return the beginning of the run."""
        return Beginning()

    def wrap(self, storage: Storage, mount: Mount) -> Storage:
        """Add the faults to what is read and written."""
        return FaultyStorage(storage, self, mount)

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Refuse faults at a time, if the loader's workers share no clock."""
        if self.sharing and not LOADERS[scenario.loader.kind].has_roles:
            yield (
                f"storage.faults: faults at a time are not possible with loader.kind={scenario.loader.kind}, whose "
                "workers share no clock; give them a rate"
            )

    @property
    def description(self) -> str:
        """The model in words, for a prediction."""
        keys = self.keys
        kinds = [name for name in ("stalls", "errors", "slow_files") if getattr(keys, name)]
        return f"storage.faults: {', '.join(kinds)} as the scenario has them, on_error={keys.on_error}"

    @property
    def stalls(self) -> str:
        """The stalls in words, as the scenario has them."""
        stalls = [
            f"{format_seconds(stall.seconds)} "
            + ("" if stall.at is None else f"for all of storage, {format_seconds(stall.at)} after the first read")
            + ("" if stall.rate is None else f"for {100 * stall.rate:g} % of samples")
            for stall in self.keys.stalls
        ]
        return f"the scenario stalls storage on purpose (storage.faults): {', '.join(stalls)}" if stalls else ""

    def hit(
        self, kind: str, rate: float, address: tuple[int, int, int], number: int, attempt: int = 1,
        places: NDArray[np.intp] | None = None,
    ) -> NDArray[Any]:  # fmt: skip
        """Return the places of the samples with a fault in an attempt, among ``number`` samples of a batch.

        ``places`` are theirs in the batch, if a cache has the others.
        """
        rank, epoch, step = address
        index = (step << SAMPLES_PER_STEP_BITS) + (np.arange(number, dtype=np.int64) if places is None else places)
        drawn = seeds.uniform(seeds.key(self.seed, f"faults/{kind}/{attempt}", rank, epoch), index)
        return np.flatnonzero(drawn < rate)

    def hits_file(self, kind: str, rate: float | None, path: str, attempt: int = 1) -> bool:
        """Return whether the writing of a file has a fault; manifests, which real storage gets otherwise, have none."""
        if rate is None or path.endswith(".json"):
            return False
        drawn = seeds.uniform(seeds.key(self.seed, f"faults/{kind}/{attempt}", zlib.crc32(path.encode())), _ONE)
        return bool(drawn[0] < rate)

    def slow_share(self, requests: Requests) -> float:
        """Return the share of a batch's bytes in slow files."""
        slow = self.keys.slow_files
        if slow is None or requests.files is None:
            return 0.0
        files, file, nbytes = requests.files()
        names = np.array([zlib.crc32(path.encode()) for path in files], np.int64)
        is_slow = seeds.uniform(seeds.key(self.seed, "faults/slow"), names) < slow.share
        return float(nbytes[is_slow[file]].sum() / max(nbytes.sum(), 1))


class FaultyStorage:
    """A role's access to storage with faults."""

    def __init__(self, storage: Storage, faults: Faults, mount: Mount) -> None:
        self.storage = storage
        self.faults = faults
        self.clock = mount.clock
        self.path = mount.path
        self.io_depth = mount.io_depth
        self.budget = Budget(faults.attempts, faults.seed)
        self._beginning = mount.shared() if faults.sharing else None
        self._since: int | None = None

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Read, and add the delays of faults.

        Raises:
            StorageError: a sample failed, and ``on_error`` is fail, or no attempt is left.
        """
        delays = await self._stalled()
        begun = self.clock.now()
        served = await self.storage.read(requests, load)
        keys = self.faults.keys
        took = (self.clock.now() - begun) / 1e9
        stalls = [
            stall.seconds
            for place, stall in enumerate(keys.stalls)
            if stall.rate is not None
            for _ in self._hit(f"stall-{place}", stall.rate, requests)
        ]
        slow = self.faults.slow_share(requests) if served.requests else 0.0  # what a worker keeps is not slow
        factor = 1.0 if keys.slow_files is None else keys.slow_files.factor
        skipped: tuple[int, ...] = ()
        for why, seconds in (("stall", self._together(stalls)), ("slow file", (factor - 1) * slow * took)):
            delays += await self._held(why, seconds)
        if keys.errors:
            more, skipped = await self._errors(requests, took)
            delays += more
        return served._replace(delays=(*served.delays, *delays), skipped=served.skipped + skipped)

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write, after the stalls and errors of this time and file.

        Raises:
            StorageError: an attempt failed, and ``on_error`` is fail, or no attempt is left.
        """
        stalls = [
            stall.seconds
            for place, stall in enumerate(self.faults.keys.stalls)
            if self.faults.hits_file(f"stall-{place}", stall.rate, path)
        ]
        delays = [*await self._stalled(), *await self._held("stall", sum(stalls)), *await self._refused(path)]
        served = await self.storage.write(path, num_bytes, request_bytes, fsync=fsync)
        return served._replace(delays=(*served.delays, *delays))

    async def _stalled(self) -> list[Delay]:
        """Wait for the end of current stalls that have a time."""
        delays: list[Delay] = []
        for stall in self.faults.keys.stalls:
            if stall.at is not None:
                ends = await self._in_run() + round((stall.at + stall.seconds) * 1e9)
                begins = ends - round(stall.seconds * 1e9)
                if begins <= (now := self.clock.now()) < ends:
                    delays += await self._held("stall", (ends - now) / 1e9)
        return delays

    async def _refused(self, path: str) -> list[Delay]:
        """Repeat a write until no error answers it."""
        begun, delays, attempt = self.clock.now(), list[Delay](), 1
        while (failure := await self._current() or self._of_file(path, attempt)) is not None:
            pause = self.budget.pause(attempt, f"{self.path}/{path}")
            if self.faults.keys.on_error == "fail" or pause is None:
                await self._held(failure.kind, failure.after)
                raise self._given_up(failure, f"writing {path}", attempt, begun)
            delays += await self._held(failure.kind, failure.after + pause)
            attempt += 1
        return delays

    async def _current(self) -> Failure | None:
        """Return the error at a time that answers a request now; None without one."""
        timed = [(error, error.at) for error in self.faults.keys.errors if error.at is not None]
        passed = (self.clock.now() - await self._in_run()) / 1e9 if timed else 0.0
        return next((error for error, at in timed if at <= passed < at + error.seconds), None)

    def _of_file(self, path: str, attempt: int) -> Failure | None:
        """Return the error at a rate that answers an attempt to write a file; None without one."""
        errors = enumerate(self.faults.keys.errors)
        hits = (error for place, error in errors if self.faults.hits_file(f"error-{place}", error.rate, path, attempt))
        return next(hits, None)

    async def _errors(self, requests: Requests, took: float) -> tuple[list[Delay], tuple[int, ...]]:
        """Retry or skip the samples that fail; return the delays, and the places in the batch of skipped samples.

        An attempt of a sample takes its share of the batch's time ``took`` (s).
        """
        failing = dict(await self._failing(requests, 1))
        if not failing:
            return [], ()
        on_error, number = self.faults.keys.on_error, max(requests.num_samples, 1)
        if on_error == "skip":
            why = ", ".join(sorted({fault.kind for fault in failing.values()}))
            delays, skipped = (
                await self._held(why, self._together([each.after for each in failing.values()])),
                [*failing],
            )
            places = requests.sample_places  # a cache has the other samples of the batch
            return delays, tuple(skipped if places is None else places[skipped].tolist())
        failed, delays = [*failing], list[Delay]()
        for first in range(0, len(failed), self.io_depth):
            delays += await self._retried(requests, failed[first : first + self.io_depth], took / number)
        return delays, ()

    async def _retried(self, requests: Requests, places: Sequence[int], took: float) -> list[Delay]:
        """Repeat failed samples together until they succeed; an attempt takes ``took`` seconds a sample."""
        begun, delays, attempt = self.clock.now(), list[Delay](), 1
        while failing := {place: fault for place, fault in await self._failing(requests, attempt) if place in places}:
            why = ", ".join(sorted({fault.kind for fault in failing.values()}))
            answered = self._together([fault.after for fault in failing.values()])
            pauses = [self.budget.pause(attempt, f"{self.path}/{requests.address}/{place}") for place in failing]
            if self.faults.keys.on_error == "fail" or None in pauses:
                await self._held(why, answered)
                rank, epoch, step = requests.address
                doing = f"reading a sample of rank {rank}, epoch {epoch}, step {step}"
                raise self._given_up(next(iter(failing.values())), doing, attempt, begun)
            each = [(pause or 0.0) + took for pause in pauses]
            delays += await self._held(why, answered + self._together(each))
            places, attempt = [*failing], attempt + 1  # what succeeded is not read again
        return delays

    async def _failing(self, requests: Requests, attempt: int) -> list[tuple[int, Failure]]:
        failing: dict[int, Failure] = {}
        for place, error in enumerate(self.faults.keys.errors):
            if error.rate is not None:
                failing |= dict.fromkeys(self._hit(f"error-{place}", error.rate, requests, attempt).tolist(), error)
        if (now := await self._current()) is not None:
            failing = dict.fromkeys(range(requests.num_samples), now) | failing
        return sorted(failing.items(), key=lambda each: each[0])

    def _hit(self, kind: str, rate: float, requests: Requests, attempt: int = 1) -> NDArray[Any]:
        return self.faults.hit(kind, rate, requests.address, requests.num_samples, attempt, requests.sample_places)

    def _given_up(self, failure: Failure, doing: str, attempts: int, begun: int) -> StorageError:
        tries = in_tries(attempts, (self.clock.now() - begun) / 1e9)
        remedy = "raise storage.max_attempts or give" if attempts > 1 else "give retry or"
        hint = f"; storage.faults.on_error={self.faults.keys.on_error}, {remedy} skip"
        hint = hint if doing.startswith("reading") else hint.rpartition(" or ")[0]
        error = given_up(self.path, failure.kind, "storage.faults", doing, tries, is_busy=False)
        return StorageError(f"{error}{hint}")

    async def _held(self, why: str, seconds: float) -> list[Delay]:
        if (duration := round(seconds * 1e9)) <= 0:
            return []
        since = self.clock.now()
        await self.clock.sleep_until(since + duration)
        return [Delay(since, self.clock.now(), "fault", why)]

    def _together(self, seconds: Sequence[float]) -> float:
        """Return the time of several samples' faults, ``io_depth`` of them at a time."""
        return sum(seconds) if self.io_depth == 1 else in_flight(np.array(seconds, np.float64), self.io_depth)

    async def _in_run(self) -> int:
        if self._since is None:
            assert self._beginning is not None
            since = self._beginning.since(self.clock.now())
            self._since = since if isinstance(since, int) else int(await since)
        return self._since
