"""Readers that scale on Ray: queues send requests through the collector to the driver, which starts actors.

The driver owns the actors, so they survive a queue's death. It starts the requested readers and informs the queue once
all are ready; it ends dismissed ones after they have sent their spans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from rayio.engines.ray.cluster.slots import Granted, Slots
from rayio.engines.ray.placement import ActorSpec
from rayio.errors import ClusterError
from rayio.model.cpu_account import ProcessCpu
from rayio.model.plan import Plan
from rayio.model.scaler import Arrived
from rayio.reporter import SILENT

#: Readers that start at the same time.
MOST_STARTING = 16
#: Seconds for a reader that leaves to send its spans.
LEAVE_SECONDS = 10.0

#: Requests a number of readers for a rank from the collector.
Wish = Callable[[int, int], None]


class RayStaff:
    """The readers of a rank as its queue's process sees them; see ``rayio.model.scaler.Staff``."""

    def __init__(self, rank: int, wish: Wish, is_free: Callable[[int], bool], end: Callable[[int], None]) -> None:
        self.rank = rank
        self.wish = wish
        self.is_free = is_free
        #: Forgets connections to a rank's readers beyond a number.
        self.end = end
        self._arrived: Arrived | None = None

    def hire(self, workers: int, arrived: Arrived) -> None:
        """See ``rayio.model.scaler.Staff``."""
        self._arrived = arrived
        self.wish(self.rank, workers)

    def arrived(self, workers: int, waited: int) -> None:
        """Record that readers have arrived; no-op if this queue restarted since its request."""
        if self._arrived is not None:
            arrived, self._arrived = self._arrived, None
            arrived(workers, waited)

    def dismiss(self, workers: int) -> None:
        """See ``rayio.model.scaler.Staff``."""
        self.end(workers)
        self.wish(self.rank, workers)


class Team:
    """The driver's part: running, starting and ending reader actors.

    ``create`` makes a reader actor under a name in Ray (its own, or a new one after a restart) in a placement group,
    its own or the run's (None). With ``slots``, new readers first need one. ``handles`` has the run's actors by name
    and is updated; ``ready`` receives each new reader's entry of run.json, and ``not_started`` returns the reason of a
    failure.
    """

    def __init__(
        self,
        plan: Plan,
        specs: Sequence[ActorSpec],
        handles: dict[str, Any],
        create: Callable[[ActorSpec, str, Any], Any],
        ready: Callable[[dict[str, Any]], None],
        not_started: Callable[[str, RayError], str],
        slots: Slots | None = None,
        say: Callable[[str], None] = SILENT.say,
    ) -> None:
        self.specs = {spec.name: spec for spec in specs if spec.kind == "reader"}
        #: The name of the actor with a rank's queue.
        self.queues = {
            member[0]: spec.name
            for spec in specs
            if spec.kind == ("rank" if plan.is_queued_in_rank else "queue")
            for member in spec.members
        }
        self.handles = handles
        self.create = create
        self.ready = ready
        self.not_started = not_started
        self.slots = slots
        self.say = say
        self.deadline = plan.cluster.start_deadline
        assert plan.loader.scaling is not None
        least = plan.loader.scaling.min
        #: By rank: the number of readers that its queue requests, and the number that it knows.
        self.wanted = dict.fromkeys(self.queues, least)
        self._known = dict.fromkeys(self.queues, least)
        self._least = least
        #: By rank: number of its queue's requests handled.
        self._heard = dict.fromkeys(self.queues, 0)
        #: By name: the reference and the deadline of a starting reader; and the names of ready ones.
        self._starting: dict[str, tuple[Any, float]] = {}
        self._there = {name for name, spec in self.specs.items() if is_first(spec, least)}
        self._leaving: dict[str, tuple[Any, float]] = {}
        #: By name: slots of readers that have not started yet.
        self._granted: dict[str, Granted] = {}
        #: By rank: the time since when its queue waits for readers, and the part of it spent waiting for nodes (s).
        self._since: dict[int, float] = {}
        self._waited: dict[int, float] = {}
        self._has_missed = False
        #: Notes for the run's end.
        self.notes: list[str] = []
        #: Number of starts of each.
        self._lives: dict[str, int] = {}
        #: CPU time of readers that have left.
        self.cpu: list[ProcessCpu] = []
        self.sent = 0

    def look(self, wishes: Mapping[int, tuple[int, int]]) -> None:
        """Carry out the queues' requests as far as possible without waiting.

        ``wishes`` has, by rank, the number of requests of its queue, and the latest.

        Raises:
            ClusterError: a reader could not start.
        """
        self._hear(wishes)
        self._take_in()
        if self.slots is not None:
            self._take_places(self.slots)
        wanted = {name for name, spec in self.specs.items() if self._is_wanted(spec)}
        self._start(wanted)
        self._tell()
        self._end(wanted)

    def close(self) -> None:
        """Cancel readers that have not arrived."""
        for name in self._starting:
            ray.kill(self.handles.pop(name))
        self._starting.clear()
        if self.slots is not None:
            self.slots.close()

    def _hear(self, wishes: Mapping[int, tuple[int, int]]) -> None:
        for rank, (number, workers) in wishes.items():
            missed = number - self._heard[rank] - 1
            if missed < 0:
                continue
            self._heard[rank] = number
            if workers > self.wanted[rank]:
                self._since[rank], self._waited[rank] = time.monotonic(), 0.0
            self.wanted[rank] = workers
            if missed:  # the queue may have dismissed readers or restarted: inform it of all
                self._known[rank] = min(self._known[rank], self._least)

    def _is_wanted(self, spec: ActorSpec) -> bool:
        return any(worker < self.wanted[rank] for rank, worker in spec.members)

    def _start(self, wanted: set[str]) -> None:
        until = time.monotonic() + self.deadline
        for name in sorted(wanted - self._there - self._starting.keys() - self._leaving.keys()):
            if len(self._starting) >= MOST_STARTING:
                break
            spec, group = self.specs[name], None
            if self.slots is not None and (granted := self._granted.pop(name, None)) is None:
                self.slots.want(name)
                continue
            if self.slots is not None and granted is not None:
                spec, group = replace(spec, node=granted.node), granted.group
            life = self._lives[name] = self._lives.get(name, int(name in self.handles)) + 1
            handle = self.handles[name] = self.create(spec, f"{name}.{life}" if life > 1 else name, group)
            self._starting[name] = handle.ready.remote(), until

    def _take_places(self, slots: Slots) -> None:
        granted, late = slots.look()
        for grant in granted:
            if self._is_wanted(self.specs[grant.name]):
                self._granted[grant.name] = grant
                for rank, _ in self.specs[grant.name].members:
                    self._waited[rank] = time.monotonic() - self._since[rank]
            else:
                slots.free(grant.name)
        if late and not self._has_missed:
            self._has_missed = True
            self.notes.append(slots.missed(late[0]))
            self.say(f"warning: {self.notes[-1]}")
        for name in late:
            for rank, _ in self.specs[name].members:
                self._waited[rank] = time.monotonic() - self._since[rank]
            self._do_without(name)

    def _take_in(self) -> None:
        for name, (reference, until) in [*self._starting.items()]:
            if ray.wait([reference], timeout=0)[0]:
                try:
                    self.ready(ray.get(reference))
                except RayError as error:
                    raise ClusterError(self.not_started(name, error)) from None
                self._there.add(name)
                del self._starting[name]
            elif time.monotonic() > until:
                self._give_up(name)
        for name, (reference, until) in [*self._leaving.items()]:
            is_done = bool(ray.wait([reference], timeout=0)[0])
            if is_done or time.monotonic() > until:
                self._ended(name, reference if is_done else None)

    def _give_up(self, name: str) -> None:
        del self._starting[name]
        ray.kill(self.handles.pop(name))
        self._do_without(name)

    def _do_without(self, name: str) -> None:
        """Cancel a reader without a node in time: its queue continues with the others."""
        for rank, worker in self.specs[name].members:
            if worker < self.wanted[rank]:
                self.wanted[rank] = max(worker, self._known[rank])
                self._employ(rank)
        self._give_back()

    def _give_back(self) -> None:
        if self.slots is None:
            return
        for name, spec in self.specs.items():
            if name not in self.handles and not self._is_wanted(spec):
                self._granted.pop(name, None)
                self.slots.free(name)

    def _tell(self) -> None:
        for rank, workers in self.wanted.items():
            if workers < self._known[rank]:
                self._known[rank] = workers
            elif workers > self._known[rank] and all(
                name in self._there for name in self._of(rank, range(self._known[rank], workers)).values()
            ):
                self._employ(rank)

    def _employ(self, rank: int) -> None:
        workers = self.wanted[rank]
        news = {
            worker: self.handles[name] for worker, name in self._of(rank, range(self._known[rank], workers)).items()
        }
        self._known[rank] = workers
        waited = round(self._waited.get(rank, 0.0) * 1e9)
        self.handles[self.queues[rank]].employ.remote(rank, workers, news, waited)

    def _of(self, rank: int, workers: range) -> dict[int, str]:
        return {
            worker: name
            for name, spec in self.specs.items()
            for of, worker in spec.members
            if of == rank and worker in workers
        }

    def _end(self, wanted: set[str]) -> None:
        for name in sorted(self._there - wanted):
            self._there.discard(name)
            self._leaving[name] = self.handles[name].leave.remote(), time.monotonic() + LEAVE_SECONDS

    def _ended(self, name: str, reference: Any) -> None:
        del self._leaving[name]
        handle = self.handles.pop(name)
        if reference is not None:
            try:
                sent, cpu = ray.get(reference)
            except RayError:
                pass
            else:
                self.sent += sent
                self.cpu += [] if cpu is None else [cpu]
        ray.kill(handle)
        if self.slots is not None:
            self.slots.free(name)


def is_first(spec: ActorSpec, least: int) -> bool:
    """Return True if a reader actor exists from the start, when ranks begin with ``least`` readers."""
    return any(worker < least for _, worker in spec.members)
