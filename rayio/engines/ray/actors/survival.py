"""Failures on Ray: actors that are killed on purpose, and ranks that start again from a checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Protocol

import ray
from ray.exceptions import RayError, RayTaskError

from rayio.engines.ray.cluster.connect import Connection
from rayio.engines.ray.cluster.control import Control
from rayio.engines.ray.cluster.lost import await_loss, lost_nodes
from rayio.engines.ray.placement import SERVERS, ActorSpec
from rayio.engines.ray.transport.remote import plain
from rayio.errors import RunError
from rayio.model.attempts import Attempts, BrokenOffError, Death, Resumed
from rayio.model.ledger import Tally
from rayio.model.marks import Mark, Saved
from rayio.model.plan import Plan
from rayio.model.workflow import CONDUCTOR, StageTally
from rayio.scenario.failures import BREAKING, REPLACED
from rayio.trace.clocks import Anchor

#: Seconds for ranks that are alive to send their spans and their consumption.
LEAVE_SECONDS = 10.0
#: Seconds for the collector to answer.
ANSWER_SECONDS = 30.0


class Group(Protocol):
    """The part of a run's actors (``rayio.engines.ray.actors.group``) that failures need."""

    plan: Plan
    directory: str
    specs: list[ActorSpec]
    handles: dict[str, Any]
    actors: list[dict[str, Any]]
    restarts: list[dict[str, Any]]
    tallies: list[Tally]
    stage_tallies: list[StageTally]
    control: Control
    connection: Connection
    #: The Ray node of each emulated one, by its number as text.
    homes: dict[str, str]
    #: Actors that do not answer, and are not waited for at the end.
    silent: set[str]
    anchor: Anchor

    def create(self, spec: ActorSpec, name: str = "") -> Any:
        """Create a role's actor."""

    def await_ready(self, names: Iterable[str], say: Callable[[str], None]) -> None:
        """Wait until actors have started."""


class Asked(Saved):
    """The checkpoints of a run as the collector knows them, which ranks report to."""

    def __init__(self, world_size: int, ask: Callable[..., Any]) -> None:
        super().__init__(world_size)
        self._ask = ask

    def survivor(self, *, is_tier_lost: bool) -> Mark | None:
        """See ``rayio.model.marks.Saved``.

        Raises:
            RunError: the collector does not answer.
        """
        survivor: Mark | None = self._ask("newest_checkpoint", is_tier_lost)
        return survivor


class Survival:
    """The failures of a run on Ray; ``tallies`` are the run's, which a restart sets back to the checkpoint."""

    def __init__(self, group: Group, tallies: list[Tally], resumed: Resumed | None = None) -> None:
        self.group = group
        self.attempts = Attempts(group.plan, tallies, Asked(group.plan.world_size, self._ask))
        self._resumed = resumed
        self.attempts.start(self.now(), resumed)
        group.plan = self.attempts.plan
        section = group.plan.failures
        passed = -1.0 if resumed is None else (self.now() - resumed.began) / 1e9
        #: Events on processes other than ranks, the earliest last.
        self._kills = sorted(
            (
                event for event in (() if section is None else section.events)
                if event.kind in (*REPLACED, *BREAKING) and (event.at or 0.0) > passed
            ),
            key=lambda event: event.at or 0.0,
            reverse=True,
        )  # fmt: skip
        self._next: Death | None = None
        #: The deaths of this attempt that this process caused.
        self._struck: Death | None = None

    @property
    def is_possible(self) -> bool:
        """True if the run goes on after the death of a rank."""
        section = self.group.plan.failures
        return section is not None and section.policy != "fail"

    def now(self) -> int:
        """Return the time of the run's clock (ns)."""
        return self.group.anchor.here().ns + time.perf_counter_ns()

    def start(self) -> None:
        """Begin the time of the first attempt, once its actors are there."""
        if self._resumed is not None:
            self.attempts.begun(self.now())
            self.group.handles["collector"].resumed.remote(self._resumed.mark, self._resumed.durable)
            self.group.handles["collector"].remember.remote(self.attempts.restarts)
        else:
            self.attempts.start(self.now())
        self._next = self.attempts.next_death()

    def seconds_left(self, most: float) -> float:
        """Return the seconds until the next failure, or ``most`` if it is later."""
        times = [self._next.at] if self._next is not None else []
        times += [self.attempts.origin + round((event.at or 0.0) * 1e9) for event in self._kills[-1:]]
        return min([most, *(max(0.0, (at - self.now()) / 1e9) for at in times)])

    def strike(self) -> None:
        """Kill what is due."""
        now = self.now()
        while self._kills and self.attempts.origin + round((self._kills[-1].at or 0.0) * 1e9) <= now:
            event = self._kills.pop()
            self._kill(event.kind, event.number)
        if self._next is not None and self._next.at <= now:
            death, self._next = self._next._replace(at=now), None
            self._struck = death
            self._kill(death.kind, death.number)

    def unseen(self, living: Collection[str]) -> Death | None:
        """Return a death that this process caused, if none of the ``living`` roles died of it: those had ended."""
        death = self._struck
        return None if death is None or not {*living}.isdisjoint(self._names(death.kind, death.number)) else death

    def look(self, *, is_late: bool = False) -> None:
        """Look whether Ray and its nodes live; ``is_late`` if a rank has died, and its node perhaps too.

        Raises:
            ClusterError: Ray does not, or a node is gone that the run cannot go on without.
            RunError: a node is gone; BrokenOffError if the run goes on with the others.
        """
        group, section = self.group, self.group.plan.failures
        lost = lost_nodes(group.control, group.homes, is_late=is_late) if self.is_possible else {}
        if section is not None and lost:
            number, node = min(lost.items())
            group.silent |= {actor["name"] for actor in group.actors if actor.get("ray_node") in lost.values()}
            await_loss(group.control, {*lost.values()}, len(group.connection.nodes), section.rejoin)
            raise self.broken_off("node", number, f"the Ray node {node[:8]} was lost")
        group.control.look()

    def broken_off(self, kind: str, number: int, why: str) -> RunError:
        """Return the error of a run that lost what no actor replaces, and goes on in its directory; or why it cannot.

        ``number`` is that of a node; ``why`` is the message of a run that does not survive.
        """
        if not self.is_possible:
            return RunError(why)
        death = Death(kind, number, self.now())
        try:
            self.attempts.check(death)
        except RunError as error:
            return error
        broken = BrokenOffError(f"{death.name} was lost; the run goes on in its directory (failures)")
        broken.cause, broken.directory = death.name, self.group.directory
        return broken

    def death_of(self, name: str) -> Death:
        """Return the death of a rank's actor: on purpose, at a step, or by another cause."""
        if self._struck is not None:
            return self._struck
        ranks = [member[0] for spec in self.group.specs if spec.name == name for member in spec.members]
        heard: int = self._ask("last_heard", name)
        section = self.attempts.first.failures
        for doom in self.attempts.plan.doomed:
            if doom.rank in ranks and section is not None:
                event = section.events[doom.event]
                return Death(event.kind, event.number, heard, doom.event)
        return Death("rank", ranks[0] if ranks else 0, heard)

    def restart(self, death: Death, say: Callable[[str], None]) -> None:
        """Start all ranks again from the newest complete checkpoint.

        Raises:
            RunError: the policy forbids it, or the collector does not answer.
            ClusterError: the new ranks did not start.
        """
        group, attempts, detected = self.group, self.attempts, self.now()
        attempts.check(death)
        say(f"{death.name} died; all ranks start again")
        if (beginning := attempts.beginning) is not None:
            group.handles["collector"].began.remote(beginning)
        if (stages := group.handles.get(CONDUCTOR)) is not None:
            group.control.answers([stages.halt.remote()], ANSWER_SECONDS)
            group.stage_tallies.clear()
        ranks = [spec for spec in group.specs if spec.kind == "rank"]
        delivered = {tally.rank: tally.steps for tally in self._leave(ranks)}
        group.tallies.clear()
        group.plan = attempts.restart(death, detected, detected, delivered)
        names = {spec.name for spec in ranks}
        group.actors[:] = [actor for actor in group.actors if actor["name"] not in names]
        for spec in ranks:
            group.handles[spec.name] = group.create(spec, f"{spec.name}.{group.plan.start.attempt}")
        group.await_ready(names, say)
        attempts.begun(self.now())
        group.handles["collector"].remember.remote(attempts.restarts)
        self._struck, self._next = None, attempts.next_death()

    def tallies_of(self, members: Iterable[tuple[int, ...]]) -> Iterator[Tally]:
        """Return the consumption with which some ranks begin."""
        ranks = {member[0] for member in members}
        return (tally for tally in self.attempts.tallies if tally.rank in ranks)

    def notes(self) -> list[str]:
        """Return a note for each event without effect, once the run is over."""
        late = [f"failures: {event.planned} was not killed, because the run ended" for event in self._kills]
        return [*self.attempts.notes(), *late]

    def _leave(self, ranks: list[ActorSpec]) -> list[Tally]:
        """Take the consumption and the spans of ranks that are alive, then end all."""
        group, tallies = self.group, list[Tally]()
        handles = [group.handles[spec.name] for spec in ranks]
        for reference in group.control.answers([handle.consumed.remote() for handle in handles], LEAVE_SECONDS):
            with contextlib.suppress(RayError):
                tallies += ray.get(reference)
        for reference in group.control.answers([handle.flush.remote() for handle in handles], LEAVE_SECONDS):
            with contextlib.suppress(RayError):
                ray.get(reference)
        for handle in handles:
            with contextlib.suppress(RayError):
                ray.kill(handle)
        return tallies

    def _kill(self, kind: str, number: int) -> None:
        """Send SIGKILL to the processes of a rank, a node or another role: each sends it to itself."""
        if kind == "driver":
            os.kill(os.getpid(), signal.SIGKILL)
        for name in self._names(kind, number):
            if (handle := self.group.handles.get(name)) is not None:
                pids = [actor["pid"] for actor in self.group.actors if actor["name"] == name]
                pids += [restart["pid"] for restart in self.group.restarts if restart["actor"] == name]
                if pids:
                    handle.die.remote(pids[-1])

    def _names(self, kind: str, number: int) -> Iterator[str]:
        if kind == "barrier" or (kind == "node" and number == 0):
            yield "barrier"
        if kind == "collector":
            yield "collector"
        workers = max(1, self.group.plan.loader.num_workers)
        member = divmod(number, workers) if kind == "reader" else (number,)
        for spec in self.group.specs:
            is_on_node = kind == "node" and spec.node == number and spec.kind not in SERVERS
            if is_on_node or (spec.kind == kind and member in spec.members):
                yield spec.name

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call the collector.

        Raises:
            RunError: it does not answer, or it died.
        """
        reference = getattr(self.group.handles["collector"], method).remote(*arguments)
        if not self.group.control.answers([reference], ANSWER_SECONDS):
            raise RunError("the collector does not answer: a rank died, and nobody knows the newest checkpoint")
        try:
            return ray.get(reference)
        except RayTaskError as error:
            raise plain(error) from None
        except RayError:
            self.group.silent.add("collector")
            raise self.broken_off("collector", 0, "the collector died with a rank; start the run again") from None
