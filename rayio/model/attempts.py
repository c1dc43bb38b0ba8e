"""Attempts: a run that loses a rank or a node goes on from its newest complete checkpoint, in a further attempt.

Each attempt is a separate run from ``Plan.start`` on. A checkpoint is complete once every rank has passed its step
and its own part is durable. Each rank's tally belongs to the checkpoint, as the state of a data loader does in a real
one: it is what the ledger counts when the run goes on from there. Everything here is pure; engines carry it out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rayio import seeds
from rayio.errors import RunError
from rayio.model.ledger import Tally
from rayio.model.marks import Mark, Saved
from rayio.model.plan import Plan
from rayio.model.plan_parts import Doom
from rayio.model.workflow import Progress
from rayio.place import Start
from rayio.records.failures import Restart
from rayio.scenario.failures import ENDING, named
from rayio.scenario.schedule import place_of
from rayio.scenario.topology import PerNode, node_of
from rayio.trace.recorder import Recorder
from rayio.units import format_seconds

#: The cause of a restart that a run does not know.
BROKE_OFF = "the run"


class Death(NamedTuple):
    """The death of a rank, a node or another part of a run at a time (ns, as the run's clock counts)."""

    kind: str
    number: int
    at: int
    #: The position of its event in the scenario; -1 for a failure that is no event.
    event: int = -1

    @property
    def name(self) -> str:
        """The name of what died."""
        return named(self.kind, self.number)


class BrokenOffError(RunError):
    """A run that lost what it cannot replace while it lives; it can go on in its directory, in a further attempt."""

    #: What died, in words, and the address of the run directory.
    cause: str = BROKE_OFF
    directory: str = ""


class DeadError(RunError):
    """A rank or a node has died on purpose; the engine starts the next attempt."""

    def __init__(self, death: Death) -> None:
        super().__init__(f"{death.name} died (failures)")
        self.death = death


@dataclass(frozen=True, slots=True)
class Resumed:
    """The earlier part of a run: the checkpoint to go on from (None: the start), and the number of the new attempt."""

    mark: Mark | None
    attempt: int
    #: Begin and end of the earlier part, in ns of the run's clock.
    began: int
    ended: int
    #: The last (epoch, step) that a rank began.
    reached: tuple[int, int] = (-1, -1)
    redone_steps: int = 0
    restarts: tuple[Restart, ...] = ()
    #: What died, in words; a run whose driver died only knows that it broke off.
    cause: str = BROKE_OFF
    #: The newest checkpoint that needs no burst tier.
    durable: Mark | None = None
    #: What the processes of stages did.
    stages: Progress | None = None


class Beginning(NamedTuple):
    """The begin of an attempt (ns) that a failure ended: ranks may have died before their first span."""

    at: int
    attempt: int
    world_size: int
    ranks_per_node: PerNode

    def record(self, recorder: Recorder) -> None:
        """Record it for every rank."""
        for rank in range(self.world_size):
            writer = recorder.register("rank", str(rank), node_of(rank, self.ranks_per_node))
            recorder.add(writer, "startup", self.at, self.at, rank=rank, attempt=self.attempt)


class Attempts:
    """The attempts of a run: when the next failure comes, and where the run goes on after one.

    ``plan`` is that of the first attempt; ``tallies`` are the run's, one for each rank, which a restart sets back to
    the checkpoint. ``begin`` is the time of the first attempt (ns). ``kinds`` are those of failures that end
    an attempt.
    """

    def __init__(
        self, plan: Plan, tallies: list[Tally], saved: Saved, begin: int = 0, kinds: Collection[str] = ENDING
    ) -> None:
        self.first = plan
        self.tallies = tallies
        self.saved = saved
        #: Times (ns) of the clock: when the run began, and when the current attempt did.
        self.origin = self.begin = begin
        self.restarts: list[Restart] = []
        #: What the processes of each stage did.
        self.stages = Progress(plan.workflow)
        section = plan.failures
        #: Events that end an attempt and have not happened, by position.
        self._events = {
            place: event for place, event in enumerate(() if section is None else section.events) if event.kind in kinds
        }
        self._missed: list[str] = []
        self.plan = self._planned(None, plan.start.attempt)

    def start(self, now: int, earlier: Resumed | None = None) -> None:
        """Set the time of the first attempt (ns); ``earlier`` is the part of the run before it, which broke off."""
        self.origin = self.begin = now
        if earlier is None:
            return
        self.origin = earlier.began
        self.saved.resume(earlier.mark, earlier.durable)
        if earlier.stages is not None:
            self.stages.resume(earlier.stages)
        self.tallies[:] = restored_tallies(self.first, earlier.mark)
        for place, event in [*self._events.items()]:
            is_past = self.origin + round((event.at or 0.0) * 1e9) < now
            if event.at_step is not None:
                is_past = place_of(event.at_step, self.first.steps) <= earlier.reached
            if is_past:
                del self._events[place]
        self.plan = self._planned(earlier.mark, earlier.attempt)
        start = self.plan.start
        if not earlier.attempt:
            self.origin = now  # no rank had begun
            return
        self.restarts = [
            *earlier.restarts,
            Restart(
                attempt=start.attempt,
                cause=earlier.cause,
                at=(earlier.ended - earlier.began) / 1e9,
                detect_seconds=0.0,
                restart_seconds=max(0.0, (now - earlier.ended) / 1e9),
                is_from_checkpoint=earlier.mark is not None,
                is_from_burst=earlier.mark is not None and bool(earlier.mark.in_burst),
                epoch=start.epoch,
                step=start.step,
                redone_steps=earlier.redone_steps,
            ),
        ]

    def next_death(self) -> Death | None:
        """Return the first failure with a time in the current attempt, if any.

        The time until a node fails is exponential and starts anew with each attempt; the first of n nodes fails n times
        as early.
        """
        section, deaths = self.first.failures, []
        if section is None:
            return None
        for place, event in [*self._events.items()]:
            if event.at is None:
                continue
            at = self.origin + round(event.at * 1e9)
            if at >= self.begin:
                deaths.append(Death(event.kind, event.number, at, place))
            else:
                del self._events[place]
                self._missed.append(f"failures: {event.planned} had no effect, because the run was being restarted")
        if section.mtbf is not None:
            nodes, index = self.plan.cluster.nodes, np.arange(2, dtype=np.int64)
            time, which = seeds.uniform(seeds.key(self.plan.seed, "failures", self.plan.start.attempt), index)
            after = -math.log(time) * section.mtbf / nodes
            deaths.append(Death("node", min(int(which * nodes), nodes - 1), self.begin + round(after * 1e9)))
        return min(deaths, key=lambda death: death.at, default=None)

    def record_begin(self, recorder: Recorder) -> None:
        """Record the begin of the current attempt, which a failure ended."""
        if (beginning := self.beginning) is not None:
            beginning.record(recorder)

    @property
    def beginning(self) -> Beginning | None:
        """The begin of the current attempt; None without spans."""
        plan = self.plan
        if plan.trace.level == "none":
            return None
        return Beginning(self.begin, plan.start.attempt, plan.world_size, plan.cluster.on_nodes)

    def check(self, death: Death) -> None:
        """Refuse to survive a death that ends the run.

        Raises:
            RunError: the policy is to fail, or there were too many restarts.
        """
        section, when = self.first.failures, format_seconds((death.at - self.origin) / 1e9)
        if section is None or section.policy == "fail":
            raise RunError(f"{death.name} died after {when}, and failures.policy=fail ends the run then")
        if len(self.restarts) >= section.max_restarts:
            before = "once" if len(self.restarts) == 1 else f"{len(self.restarts)} times"
            shorter = "" if section.mtbf is None else ", or save checkpoints more often"
            raise RunError(
                f"{death.name} died after {when}: the run was restarted {before} before, and "
                f"failures.max_restarts={section.max_restarts}; raise it{shorter}"
            )

    def loses_tier(self, death: Death) -> bool:
        """Return True if a death takes the burst tier with it.

        After that of the command or of the collector, the run goes on from what its host sees: one node's tier.
        """
        saved = self.first.checkpointing
        if death.kind == "rank" or saved is None or saved.burst is None:
            return False
        return saved.burst.scope == "node" and (death.kind == "node" or self.first.cluster.nodes > 1)

    def restart(self, death: Death, detected: int, begin: int, delivered: Mapping[int, int] | None = None) -> Plan:
        """Return the plan of the next attempt, which begins at ``begin`` after a death noticed at ``detected`` (ns).

        ``delivered`` has the steps that each rank consumed by now; None: the tallies have them.

        Raises:
            RunError: the policy is to fail, or there were too many restarts.
        """
        self.check(death)
        self._events.pop(death.event, None)
        self.saved.forget_partial()
        section = self.first.failures
        newest = self.saved.survivor(is_tier_lost=self.loses_tier(death))
        mark = newest if section is not None and section.policy == "from_checkpoint" else None
        steps = {tally.rank: tally.steps for tally in self.tallies} if delivered is None else delivered
        restored = restored_tallies(self.first, mark)
        redone = sum(max(0, steps.get(tally.rank, 0) - tally.steps) for tally in restored)
        for before, tally in zip(self.tallies, restored, strict=True):
            tally.moved = before.moved  # what was read stays read
        self.tallies[:] = restored
        start = continued(self.first, mark, self.plan.start.attempt + 1).start
        self.restarts.append(
            Restart(
                attempt=start.attempt,
                cause=death.name,
                at=(death.at - self.origin) / 1e9,
                detect_seconds=(detected - death.at) / 1e9,
                restart_seconds=(begin - detected) / 1e9,
                is_from_checkpoint=mark is not None,
                is_from_burst=mark is not None and bool(mark.in_burst),
                epoch=start.epoch,
                step=start.step,
                redone_steps=redone,
            )
        )
        self.begin = begin
        self.plan = self._planned(mark, start.attempt)
        return self.plan

    def begun(self, now: int) -> None:
        """Set the time at which the current attempt really began (ns)."""
        if not self.plan.start.attempt:
            self.origin = self.begin = now
            return
        before = self.restarts.pop()
        more = (now - self.begin) / 1e9
        self.restarts.append(replace(before, restart_seconds=before.restart_seconds + more))
        self.begin = now

    def notes(self) -> list[str]:
        """Return a note for each event without effect, once the run is over."""
        late = (f"failures: {event.planned} did not die, because the run ended" for event in self._events.values())
        return [*self._missed, *late]

    def _planned(self, mark: Mark | None, attempt: int) -> Plan:
        """Return the plan of an attempt, with the checkpoint that it restores and its deaths at a step."""
        plan, doomed = continued(self.first, mark, attempt), list[Doom]()
        for place, event in self._events.items():
            if event.at_step is not None:
                rank = plan.cluster.ranks_of(event.number)[0] if event.kind == "node" else event.number
                doomed.append(Doom(rank, *place_of(event.at_step, plan.steps), place))
        return replace(plan, doomed=tuple(doomed))


def restored_tallies(plan: Plan, mark: Mark | None) -> list[Tally]:
    """Return each rank's consumption at a checkpoint, or nothing at the start."""
    return plan.tallies() if mark is None else [replace(tally) for tally in mark.tallies]


def held_by(plan: Plan, earlier: Resumed) -> frozenset[str]:
    """Return the folders in the burst tier from which a run goes on that broke off."""
    saved = continued(plan, earlier.mark, earlier.attempt).checkpointing
    restored = None if earlier.mark is None or saved is None else saved.restored
    return frozenset() if restored is None else restored.in_burst


def continued(plan: Plan, mark: Mark | None, attempt: int) -> Plan:
    """Return the plan of an attempt that restores a checkpoint and goes on after it, or begins at the start."""
    saved = plan.checkpointing
    if mark is None or saved is None:
        return replace(plan, start=plan.start._replace(attempt=attempt))
    epoch, step = saved.schedule.step(mark.number)
    restored = saved.restored_at(epoch, step, mark.tallies[0].chain)
    folder = {number: link.folder for number, link in zip(mark.chain, restored.chain, strict=True)}
    in_burst, undrained = (frozenset(folder[number] for number in some) for some in (mark.in_burst, mark.undrained))
    restored = replace(restored, in_burst=in_burst, undrained=undrained, numbers=mark.chain)
    is_last = step + 1 == plan.steps[epoch] and epoch + 1 < len(plan.steps)
    start = Start(epoch + 1, 0, attempt) if is_last else Start(epoch, step + 1, attempt)
    return replace(plan, start=start, checkpointing=replace(saved, restored=restored))
