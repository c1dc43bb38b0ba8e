"""Standings: the current activities of roles, their waits for each other, and the detection of stalls.

A role that computes or sleeps has a planned end, and is not suspect before. A role that waits for another is as quiet
as the quietest of those. Pure: times are nanoseconds of the run's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from rayio.errors import RunError
from rayio.place import Where
from rayio.units import format_seconds

#: Spans of a rank that waits for a batch, and for a writer; and what a writer does.
_DATA = ("data_wait", "eval_data_wait")
_SAVING = ("checkpoint", "checkpoint_wait", "drain_wait", "restore")
_MOVING = {"write": "writing", "load": "reading", "drain": "draining"}
_TOLD = 2
#: Seconds of silence worth a line, and between two looks.
FIRST_SECONDS, LOOK_SECONDS = 30.0, 5.0


class Standing(NamedTuple):
    """The current activity of a role."""

    role: str
    name: str
    #: The name of its span.
    doing: str
    at: Where
    #: Its start, and its last progress, such as a file that a reader opened.
    since: int
    heard: int
    #: Its planned end, if known.
    until: int | None = None
    file: str = ""
    #: The worker of a lease.
    by: str = ""

    @property
    def quiet_since(self) -> int:
        """The last time at which the role was certainly well."""
        return max(self.heard, self.until or 0)


class Silence(NamedTuple):
    """The duration of a silence in seconds, and its description."""

    seconds: float
    story: str


def silence(
    standings: Iterable[Standing],
    now: int,
    unanswered: Mapping[str, str] | None = None,
    files: Callable[[Where], Sequence[str]] = lambda at: (),
) -> Silence | None:
    """Return the longest silence, of the ranks and processes of stages that wait longest; None if none waits.

    ``unanswered`` has a note on each role or actor that did not answer, by name; ``files`` returns the files of a step.
    """
    every = _Picture(tuple(standings), now, unanswered or {}, files)
    alone = [standing for standing in every.standings if standing.role == "stage"]
    stuck = sorted(((every.quiet_since(each), each) for each in (*every.ranks, *alone)), key=lambda pair: pair[0])
    if not stuck:
        return None
    oldest = stuck[0][0]
    still = [rank for since, rank in stuck if since <= oldest + 1_000_000_000]
    return Silence(max(0.0, (now - oldest) / 1e9), every.story(still))


class _Picture:
    def __init__(
        self,
        standings: tuple[Standing, ...],
        now: int,
        unanswered: Mapping[str, str],
        files: Callable[[Where], Sequence[str]],
    ) -> None:
        self.standings = standings
        self.now = now
        self.unanswered = unanswered
        self.files = files
        self.ranks = [standing for standing in standings if standing.role == "rank"]

    def is_at_barrier(self, rank: Standing) -> bool:
        if rank.doing in ("broadcast", "sync"):
            return rank.until is None
        return rank.doing == "compute" and rank.until is not None and rank.until < self.now

    def quiet_since(self, rank: Standing) -> int:
        """Return the time of the last progress that a waiting rank depends on."""
        if not self.is_at_barrier(rank):
            return max([rank.quiet_since, *(other.quiet_since for other in self._suppliers(rank))])
        others = [other for other in self.ranks if other is not rank and not self.is_at_barrier(other)]
        return max([rank.quiet_since, *(self.quiet_since(other) for other in others)])

    def _suppliers(self, rank: Standing) -> list[Standing]:
        if rank.doing in _DATA:
            return [s for s in self.standings if s.role == "reader" and s.at.rank == rank.at.rank]
        if rank.doing in _SAVING:
            return [standing for standing in self.standings if standing.role == "checkpoint_writer"]
        return []

    def story(self, still: Sequence[Standing]) -> str:
        """Return a description of the waits, first of ranks that wait for more than each other."""
        roots = [rank for rank in still if not self.is_at_barrier(rank)]
        waiting = [rank for rank in still if self.is_at_barrier(rank)]
        parts = [self._of(rank) for rank in roots[:_TOLD]]
        if len(roots) > _TOLD:
            parts.append(f"{len(roots) - _TOLD} more as well")
        if waiting:
            first = waiting[0]
            others = len(waiting) - 1
            who = f"{first.name} and {others} other rank{'s' * (others > 1)}" if others else first.name
            verb = "has" if len(waiting) == 1 else "have"
            whom = "it" if len(roots) == 1 else "them" if roots else "the barrier"
            since = self._ago(first.until or first.since)
            parts.append(f"{who} {verb} waited {since} for {whom} at {_step(first.at)}")
        story = " ".join(parts)
        if silent := [
            f"{name} does not answer{known}"
            for name, known in self.unanswered.items()
            if f"does not answer{known}" not in story or not known
        ]:
            shown = silent if len(silent) <= 4 else [*silent[:4], f"nor do {len(silent) - 4} others"]
            parts.append(", ".join(shown))
        return "; ".join(parts)

    def _of(self, rank: Standing) -> str:
        since = self._ago(rank.since)
        if rank.role == "stage":
            return f"{rank.name} has been in {rank.doing}{f' of {rank.file}' * bool(rank.file)} for {since}"
        if rank.doing in _DATA:
            return f"{rank.name} has waited {since} for its batch of {_step(rank.at)}{self._lease(rank)}"
        if rank.doing in _SAVING:
            what = "the restore of its checkpoint" if rank.doing == "restore" else "its checkpoint"
            return f"{rank.name} has waited {since} for {what} of {_step(rank.at)}{self._moving()}"
        if rank.doing == "read":
            return f"{rank.name} has been reading {rank.file or 'its batch'} of {_step(rank.at)} for {since}"
        return f"{rank.name} has been in {rank.doing} of {_step(rank.at)} for {since}"

    def _lease(self, rank: Standing) -> str:
        mine = [s for s in self.standings if s.doing == "lease" and s.at.rank == rank.at.rank]
        mine = [s for s in mine if s.at[:3] == rank.at[:3]] or sorted(mine, key=lambda s: s.since)
        if not mine:
            return ""
        lease = mine[0]
        story = f"; {lease.by} has had it for {self._ago(lease.since)}"
        if lease.by in self.unanswered:
            story += f" and does not answer{self.unanswered[lease.by]}"
            return story + self._from_files(lease, "; its files are")
        for reader in self.standings:
            if reader.name == lease.by:
                return f"{story} and is reading {reader.file or 'it'}" if reader.doing == "read" else story
        return story + self._from_files(lease, "; its files are")

    def _from_files(self, lease: Standing, how: str) -> str:
        names = self.files(lease.at)
        shown = names if len(names) <= 3 else [*names[:3], f"{len(names) - 3} more"]
        return f"{how} {', '.join(shown)}" if names else ""

    def _moving(self) -> str:
        moving = [s for s in self.standings if s.role == "checkpoint_writer" and s.doing in _MOVING]
        if not moving:
            return ""
        first = min(moving, key=lambda standing: standing.heard)
        return f"; {first.name} has been {_MOVING[first.doing]} {first.file} for {self._ago(first.since)}"

    def _ago(self, then: int) -> str:
        return f"{max(0, self.now - then) / 1e9:.0f} s"


def _step(at: Where) -> str:
    return f"epoch {at.epoch}, step {at.step}" if at.step >= 0 else f"the start of epoch {at.epoch}"


class Vigil:
    """A watch on a run: it reports a silence after 30 s and each doubling; after the deadline it ends the run.

    ``deadline`` is the scenario's ``cluster.stall_deadline``, in seconds; ``stalls`` are those that the scenario adds
    on purpose, in words.
    """

    def __init__(self, deadline: float, say: Callable[[str], None], stalls: Sequence[str] = ()) -> None:
        self.deadline = deadline
        self.say = say
        self.stalls = stalls
        #: Reported silences, for the result's notes.
        self.notes: list[str] = []
        self._next = FIRST_SECONDS
        self._longest = 0.0

    @property
    def look_seconds(self) -> float:
        """Seconds between two looks."""
        return min(LOOK_SECONDS, self.deadline / 4)

    def hear(self, longest: Silence | None) -> None:
        """Process the current silence.

        Raises:
            RunError: silence beyond the deadline.
        """
        seconds, story = (0.0, "") if longest is None else longest
        story = "; ".join((story, *self.stalls))
        if seconds >= self.deadline:
            deadline = format_seconds(self.deadline)
            raise RunError(f"no progress for {seconds:.0f} s (cluster.stall_deadline={deadline}): {story}")
        if seconds >= self._next:
            while seconds >= self._next:
                self._next *= 2
            self._report(f"no progress for {seconds:.0f} s: {story}")
        elif seconds < FIRST_SECONDS < self._next:
            self._next = FIRST_SECONDS
            self._report(f"progress again, after {self._longest:.0f} s without")
            self._longest = 0.0
        self._longest = max(self._longest, seconds)

    def _report(self, text: str) -> None:
        self.say(text)
        self.notes.append(text)
