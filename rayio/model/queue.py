"""The state machine of one rank's prefetch queue: assignment of steps to workers, and order of deliveries.

Pure: it has two events, ``rank_advanced`` and ``batch_read``, and two decisions, ``grant`` and ``deliverable``. The
engines carry these out (see prefetch.py). ``validate`` checks the invariants after every event.

The window is PyTorch's. With W workers and prefetch factor P, step n may be started only when step n - P*W has been
*consumed*, that is, is in the rank's hands. Out of order, the number of consumed steps takes the place of that step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rayio.errors import RunError
from rayio.place import Taken
from rayio.scenario.turns import Turns
from rayio.scenario.workers import Autoscaled
from rayio.storage.base import Moved


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """The parameters of a queue, enough to restart it."""

    rank: int
    num_workers: int
    prefetch_factor: int
    steps: tuple[int, ...]
    assignment: str = "static"
    in_order: bool = True
    #: Bound on bytes granted and not yet consumed; None is no bound.
    max_bytes: int | None = None
    #: Parameters of scaling, with at most ``num_workers`` workers; None for a constant number.
    scaling: Autoscaled | None = None
    #: True if workers beyond the first ones are on pool nodes.
    has_pool: bool = False
    #: The worker of each step, if workers own files.
    turns: Turns | None = None
    #: The steps that came early before the run went on; None if batches are in order.
    taken: Taken | None = None

    @property
    def is_in_turn(self) -> bool:
        """True if steps go to workers in turn, as far as the window permits."""
        return self.assignment == "static" and self.max_bytes is None and self.scaling is None

    @property
    def first_workers(self) -> int:
        """Number of workers at the start, which is the least."""
        return self.num_workers if self.scaling is None else self.scaling.min

    @property
    def least_window(self) -> int:
        """The window with the least number of workers."""
        return self.first_workers * self.prefetch_factor

    @property
    def window(self) -> int:
        """Steps that may be started and not yet consumed, with the largest number of workers."""
        return self.num_workers * self.prefetch_factor


class Lease(NamedTuple):
    """Steps of one epoch for one worker, in reading order."""

    rank: int
    worker: int
    epoch: int
    steps: tuple[int, ...]
    attempt: int = 0


class Take(NamedTuple):
    """A rank's request, safe to repeat: its consumption, the steps that it holds, and the number of batches wanted.

    ``consumed`` means every step below it; ``extra`` are further steps, consumed out of order.
    """

    epoch: int
    consumed: int
    want: int = 1
    extra: tuple[int, ...] = ()
    holding: tuple[int, ...] = ()
    attempt: int = 0
    #: Total waiting time of the rank (ns), if workers scale; without the first batch of each epoch, which no worker
    #: could have read before, and without what meetings made up for.
    waited: int = 0
    #: Total time (ns) that the rank waited at the barrier for a rank that had waited longer for its batches.
    held: int = 0
    #: See ``Consumed.met``.
    met: int = -1


@dataclass(slots=True)
class Delivery:
    """A batch in transit: what was read, the digest of its sample ids, and the bytes (or None).

    It must not be changed; frozen dataclasses take eight times as long to create.
    """

    epoch: int
    step: int
    worker: int
    num_samples: int
    nbytes: int
    digest: int
    payload: Any = None
    attempt: int = 0
    #: Takes the memory of the payload back; None if none is lent. It stays in the process that read the batch.
    give_back: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    #: Source of the bytes; None for modelled storage without a cache.
    moved: Moved | None = field(default=None, compare=False, repr=False)
    #: Samples skipped after errors; not in ``num_samples``.
    skipped: int = 0
    #: Their bytes, which are in ``nbytes``: they were read.
    skipped_bytes: int = 0

    def done(self) -> None:
        """Release the memory of the payload for later batches; the payload must not be used after that."""
        if self.give_back is not None:
            give_back, self.give_back, self.payload = self.give_back, None, None
            give_back()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a call; the default for slots takes ten times as long, twice per batch."""
        fields = (self.epoch, self.step, self.worker, self.num_samples, self.nbytes, self.digest)
        return Delivery, (*fields, self.payload, self.attempt, None, self.moved, self.skipped, self.skipped_bytes)


class StaleAttemptError(RunError):
    """A message of an abandoned attempt."""


class QueueState:
    """The state of a queue. ``step_bytes(epoch, step)`` returns the bytes of a batch."""

    def __init__(self, spec: QueueSpec, step_bytes: Callable[[int, int], int]) -> None:
        self.spec = spec
        self.step_bytes = step_bytes
        self.epoch = -1
        self.attempt = 0
        self.num_steps = 0
        #: Every earlier step is consumed.
        self.consumed = 0
        #: Further consumed steps; empty in order.
        self.extra: set[int] = set()
        #: The next step without a worker.
        self.next_step = 0
        #: Steps leased and not yet read, by worker.
        self.leased: dict[int, int] = {}
        #: Leased steps whose workers are done, because the batch is only copied.
        self.copied: set[int] = set()
        #: Batches read and not yet consumed; never more than the window with ``leased``.
        self.ready: dict[int, Delivery] = {}
        self.bytes_in_flight = 0
        #: True if only the bound on bytes closes the window.
        self.memory_bound = False
        #: Number of workers that get leases, the lowest ones.
        self.workers = spec.first_workers
        self._free = set(range(self.workers))
        #: True if steps go to workers in turn, as far as the window permits.
        self._is_in_turn = spec.is_in_turn
        self._sizes: dict[int, int] = {}

    def rank_advanced(self, take: Take) -> bool:
        """Event: the rank's consumption; return True if it is new, so that there may be leases to grant.

        The first take of a new epoch or attempt opens its window.

        Raises:
            StaleAttemptError: the message belongs to an older attempt or a finished epoch.
        """
        epoch, consumed, _, extra, _, attempt, *_ = take
        if attempt != self.attempt or epoch != self.epoch:
            if (attempt, epoch) < (self.attempt, self.epoch):
                raise StaleAttemptError(
                    f"queue-{self.spec.rank} is at attempt {self.attempt}, epoch {self.epoch}; "
                    f"refused a message of attempt {attempt}, epoch {epoch}"
                )
            self._open(take)
        elif consumed <= self.consumed and not extra:
            return False
        if consumed > self.consumed:
            for step in range(self.consumed, consumed):
                self._forget(step)
            self.consumed = consumed
            if consumed > self.next_step:  # delivered by a queue that was killed
                self.next_step = consumed
        for step in extra:
            self._forget(step)
            self.extra.add(step)
        if self.extra:
            self.extra = {step for step in self.extra if step >= self.consumed}
        return True

    def is_overtaken(self, take: Take) -> bool:
        """Return True if a newer take has arrived: its consumption includes what this one waits for."""
        epoch, consumed, _, extra, _, attempt, *_ = take
        is_current = attempt == self.attempt and epoch == self.epoch
        return is_current and consumed + len(extra) < self.consumed + len(self.extra)

    def _open(self, take: Take) -> None:
        self.attempt, self.epoch = take.attempt, take.epoch
        self.num_steps = self.spec.steps[self.epoch] if 0 <= self.epoch < len(self.spec.steps) else 0
        self.consumed = self.next_step = take.consumed
        self.extra = set(take.extra)
        self.leased.clear()
        self.copied.clear()
        self.ready.clear()
        self._sizes.clear()
        self.bytes_in_flight = 0
        self._free = set(range(self.workers))

    def employ(self, workers: int) -> None:
        """Event: the number of workers that get leases from now on; dismissed ones still read theirs.

        With static assignment each batch goes to the worker with the fewest: in turn, except for new workers.
        """
        busy = self._busy()
        self._free = {worker for worker in range(workers) if worker not in busy}
        self.workers = workers

    def _forget(self, step: int) -> None:
        self.ready.pop(step, None)
        self.leased.pop(step, None)
        self.copied.discard(step)
        if self._sizes:
            self.bytes_in_flight -= self._sizes.pop(step, 0)

    def grant(self, lump: int = 1) -> list[Lease]:
        """Lease every step that the window and the bound on bytes permit, one step a lease, in step order.

        With a ``lump``, lease only whole lumps for every worker (or the rest of the epoch), unless nothing is being
        read: single steps that just fit the window would cost a call each.
        """
        spec, num_steps = self.spec, self.num_steps
        workers = self.workers
        if self._is_in_turn and lump == 1 and not self.extra:
            return self._grant_in_turn()
        busy = None if spec.scaling is None else Counter(self.leased.values())
        most = room = workers * spec.prefetch_factor - len(self.leased) - len(self.ready)
        if lump > 1 and self.leased and room < num_steps - self.next_step:
            most = room - room % (lump * workers)
        granted: list[Lease] = []
        self.memory_bound = False
        while most > 0 and (step := self.next_step) < num_steps:
            if step in self.extra:  # consumed out of order before a restart
                self.next_step += 1
                continue
            worker: int | None
            if spec.assignment == "dynamic":
                worker = min(self._free, default=None)
            elif spec.turns is not None:
                worker = spec.turns.worker(step)
            else:
                worker = step % workers if busy is None else min(range(workers), key=busy.__getitem__)
            if worker is None:
                break
            if spec.max_bytes is not None and not self._bytes_permit(step, spec.max_bytes):
                self.memory_bound = True
                break
            self._free.discard(worker)
            if busy is not None:
                busy[worker] += 1
            self.leased[step] = worker
            self.next_step += 1
            most -= 1
            granted.append(Lease(spec.rank, worker, self.epoch, (step,), self.attempt))
        return granted

    def _grant_in_turn(self) -> list[Lease]:
        """Return :meth:`grant`, in fewer calls, if only the window decides, as usually on the virtual clock."""
        spec, first, workers, leased = self.spec, self.next_step, self.workers, self.leased
        end = min(self.num_steps, first + workers * spec.prefetch_factor - len(leased) - len(self.ready))
        granted: list[Lease] = []
        for step in range(first, end):
            worker = leased[step] = step % workers
            granted.append(Lease(spec.rank, worker, self.epoch, (step,), self.attempt))
            self.next_step = step + 1
        return granted

    def _bytes_permit(self, step: int, most: int) -> bool:
        size = self.step_bytes(self.epoch, step)
        # With nothing in flight this is the rank's next step: refusing it would stop the run for good.
        if self.bytes_in_flight and self.bytes_in_flight + size > most:
            return False
        self._sizes[step] = size
        self.bytes_in_flight += size
        return True

    def worker_done(self, delivery: Delivery) -> None:
        """Event: a worker has read a batch that is not ready before it is copied."""
        if (delivery.attempt, delivery.epoch) == (self.attempt, self.epoch) and delivery.step in self.leased:
            self.copied.add(delivery.step)
            self._free_worker(delivery.worker)

    def batch_read(self, delivery: Delivery) -> None:
        """Event: a worker has read a batch. A late one (consumed, older attempt) is dropped."""
        if delivery.attempt != self.attempt or delivery.epoch != self.epoch:
            return
        if self.leased.pop(delivery.step, None) is not None:
            self.ready[delivery.step] = delivery
        self.copied.discard(delivery.step)
        self._free_worker(delivery.worker)

    def _free_worker(self, worker: int) -> None:
        if self.spec.assignment == "dynamic" and worker < self.workers and worker not in self._busy():
            self._free.add(worker)

    def _busy(self) -> set[int]:
        """Return the workers that read."""
        return {worker for step, worker in self.leased.items() if step not in self.copied}

    def deliverable(self, take: Take) -> list[Delivery]:
        """Return up to ``want`` batches that the rank neither consumed nor holds, in step order or order of arrival.

        In order, nothing precedes the first of them; batches ready behind a gap are included. They stay in ``ready``
        until consumed, so that a lost answer can be repeated.
        """
        _, consumed, want, _, holding, *_ = take
        if want == 1 and self.spec.in_order and not holding and not self.extra:
            next_one = self.ready.get(consumed)
            return [] if next_one is None else [next_one]
        in_hand = set(holding)
        candidates = [self.ready[s] for s in self.ready if s not in in_hand]
        if not self.spec.in_order:
            return candidates[:want]
        first = consumed
        while first in in_hand or first in self.extra:
            first += 1
        if first not in self.ready:
            return []
        return sorted((d for d in candidates if d.step >= first), key=lambda delivery: delivery.step)[:want]

    def validate(self) -> None:
        """Check the invariants after an event.

        Raises:
            AssertionError: one is violated; the message names it, with the whole state.
        """
        if broken := "; ".join(self._broken()):
            raise AssertionError(f"{broken}\n{vars(self)}")

    def _broken(self) -> Iterator[str]:
        spec, leased, ready = self.spec, self.leased, self.ready
        granted = leased.keys() | ready.keys()
        if not self.copied <= leased.keys():
            yield "steps are copied that are not leased"
        if not self.consumed <= self.next_step <= self.num_steps:
            yield "not consumed <= next_step <= num_steps"
        if both := leased.keys() & ready.keys():
            yield f"steps {both} are leased and ready"
        if granted != {*range(self.consumed, self.next_step)} - self.extra:
            yield "the steps leased or ready are not those between consumed and next_step that are not consumed"
        if any(step <= self.consumed for step in self.extra):
            yield "consumed out of order, but not above what is consumed in order"
        if len(granted) > spec.window:
            yield f"{len(granted)} steps are granted, the window is {spec.window}"
        if strange := [d for s, d in ready.items() if (d.epoch, d.step, d.attempt) != (self.epoch, s, self.attempt)]:
            yield f"of another place than where they lie: {strange}"
        if spec.assignment == "static":
            if spec.scaling is None and any(worker != step % spec.num_workers for step, worker in leased.items()):
                yield "a step is leased to another worker than its own"
        elif spec.turns is not None:
            if any(worker != spec.turns.worker(step) for step, worker in leased.items()):
                yield "a step is leased to another worker than the one that owns its files"
        elif (
            len(busy := self._busy()) != len(leased) - len(self.copied)
            or self._free & busy
            or not busy <= {*range(spec.num_workers)}
        ):
            yield "a worker has two leases, or one and is free"
        if self.bytes_in_flight != sum(self._sizes.values()) or (spec.max_bytes and self._sizes.keys() != granted):
            yield "bytes_in_flight are not those of the steps granted"
        if spec.max_bytes and self.bytes_in_flight > spec.max_bytes and sum(map(bool, self._sizes.values())) > 1:
            yield f"{self.bytes_in_flight} bytes in flight of several batches, {spec.max_bytes} are permitted"
