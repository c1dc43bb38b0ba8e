"""Who waits for whom, since when and in which file: what roles say of themselves in a run, and what to make of it.

A role that computes or sleeps has said until when, and nobody worries before. Whoever waits for another is as quiet as
the quietest that it waits for. Pure: times are nanoseconds of the run's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from rayio.errors import RunError
from rayio.place import Where
from rayio.units import format_seconds

#: Spans of a rank that are waiting for a batch, and for what is written.
_DATA = ("data_wait", "eval_data_wait")
_SAVING = ("checkpoint", "checkpoint_wait")
#: Ranks that a story is told of in full.
_TOLD = 2
#: Seconds of silence that are worth a line, and between two looks.
FIRST_SECONDS, LOOK_SECONDS = 30.0, 5.0


class Standing(NamedTuple):
    """What a role is doing at a moment."""

    role: str
    name: str
    #: The name of the span that this will be.
    doing: str
    at: Where
    #: When it began, and when it last got on, as a reader does with every file that it opens.
    since: int
    heard: int
    #: When it will be over, where that was said.
    until: int | None = None
    #: The file that it reads or writes.
    file: str = ""
    #: Who does it, where that is somebody else: the worker of a lease.
    by: str = ""

    @property
    def quiet_since(self) -> int:
        """The last time at which all was well."""
        return max(self.heard, self.until or 0)


class Silence(NamedTuple):
    """How long nothing was heard, in seconds, and what stands still."""

    seconds: float
    story: str


def silence(
    standings: Iterable[Standing],
    now: int,
    unanswered: Mapping[str, str] | None = None,
    files: Callable[[Where], Sequence[str]] = lambda at: (),
) -> Silence | None:
    """Find the ranks that have waited longest for what does not come; None where no rank waits for anything.

    ``unanswered`` has what is known of each role or actor that was asked and did not answer, by name; ``files`` says
    which files a step is read from.
    """
    every = _Picture(tuple(standings), now, unanswered or {}, files)
    stuck = sorted(((every.quiet_since(one), one) for one in every.ranks), key=lambda found: found[0])
    if not stuck:
        return None
    oldest = stuck[0][0]
    still = [one for since, one in stuck if since <= oldest + 1_000_000_000]
    return Silence(max(0.0, (now - oldest) / 1e9), every.story(still))


class _Picture:
    """All standings of a run at one moment."""

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
        self.ranks = [one for one in standings if one.role == "rank"]

    def is_at_barrier(self, rank: Standing) -> bool:
        """Whether a rank has computed, and waits for others to have."""
        return rank.doing == "compute" and rank.until is not None and rank.until < self.now

    def quiet_since(self, rank: Standing) -> int:
        """When last something happened that this rank waits for."""
        if not self.is_at_barrier(rank):
            return max([rank.quiet_since, *(one.quiet_since for one in self._suppliers(rank))])
        others = [one for one in self.ranks if one is not rank and not self.is_at_barrier(one)]
        return max([rank.quiet_since, *(self.quiet_since(one) for one in others)])

    def _suppliers(self, rank: Standing) -> list[Standing]:
        if rank.doing in _DATA:
            return [one for one in self.standings if one.role == "reader" and one.at.rank == rank.at.rank]
        if rank.doing in _SAVING:
            return [one for one in self.standings if one.role == "checkpoint_writer"]
        return []

    def story(self, still: Sequence[Standing]) -> str:
        """Say who waits for whom: those first who wait for more than each other."""
        roots = [one for one in still if not self.is_at_barrier(one)]
        waiting = [one for one in still if self.is_at_barrier(one)]
        parts = [self._of(one) for one in roots[:_TOLD]]
        if len(roots) > _TOLD:
            parts.append(f"{len(roots) - _TOLD} more as well")
        if waiting:
            first = waiting[0]
            others = len(waiting) - 1
            who = f"{first.name} and {others} other rank{'s' * (others > 1)}" if others else first.name
            verb = "waits" if len(waiting) == 1 else "wait"
            whom = "it" if len(roots) == 1 else "them" if roots else "the barrier"
            parts.append(f"{who} {verb} for {whom} at {_step(first.at)} since {self._ago(first.until or first.since)}")
        told = " ".join(parts)
        silent = [f"{name} does not answer{known}" for name, known in self.unanswered.items()]
        if silent := [one for one in silent if one not in told]:
            shown = silent if len(silent) <= 4 else [*silent[:4], f"nor do {len(silent) - 4} others"]
            parts.append(", ".join(shown))
        return "; ".join(parts)

    def _of(self, rank: Standing) -> str:
        began = f"since {self._ago(rank.since)}"
        if rank.doing in _DATA:
            return f"{rank.name} waits for {_step(rank.at)} {began}{self._lease(rank)}"
        if rank.doing in _SAVING:
            return f"{rank.name} waits for its checkpoint at {_step(rank.at)} {began}{self._writing()}"
        if rank.doing == "read":
            return f"{rank.name} reads {rank.file or 'its batch'} for {_step(rank.at)} {began}"
        return f"{rank.name} is in {rank.doing} of {_step(rank.at)} {began}"

    def _lease(self, rank: Standing) -> str:
        """Say who has the step that a rank waits for, and what that is at."""
        mine = [one for one in self.standings if one.doing == "lease" and one.at.rank == rank.at.rank]
        mine = [one for one in mine if one.at[:3] == rank.at[:3]] or sorted(mine, key=lambda one: one.since)
        if not mine:
            return ""
        lease = mine[0]
        told = f", which {lease.by} has had since {self._ago(lease.since)}"
        if lease.by in self.unanswered:
            told += f"; {lease.by} does not answer{self.unanswered[lease.by]}"
            return told + self._from_files(lease, ", its files are")
        for reader in self.standings:
            if reader.name == lease.by:
                return f"{told} and reads {reader.file or 'it'}" if reader.doing == "read" else told
        return told + self._from_files(lease, " and reads from")

    def _from_files(self, lease: Standing, how: str) -> str:
        names = self.files(lease.at)
        shown = names if len(names) <= 3 else [*names[:3], f"{len(names) - 3} more"]
        return f"{how} {', '.join(shown)}" if names else ""

    def _writing(self) -> str:
        writing = [one for one in self.standings if one.role == "checkpoint_writer" and one.doing == "write"]
        if not writing:
            return ""
        first = min(writing, key=lambda one: one.heard)
        return f", of which {first.name} writes {first.file} since {self._ago(first.since)}"

    def _ago(self, then: int) -> str:
        return f"{max(0, self.now - then) / 1e9:.0f} s"


def _step(at: Where) -> str:
    return f"epoch {at.epoch}, step {at.step}"


class Vigil:
    """Listens to a run: a silence is told after half a minute and each time it has doubled, and one too long ends it.

    ``deadline`` is the scenario's ``cluster.stall_deadline``, in seconds.
    """

    def __init__(self, deadline: float, say: Callable[[str], None]) -> None:
        self.deadline = deadline
        self.say = say
        #: What was told, for the result's notes.
        self.notes: list[str] = []
        self._next = FIRST_SECONDS
        self._longest = 0.0

    @property
    def look_seconds(self) -> float:
        """Seconds between two looks at who waits."""
        return min(LOOK_SECONDS, self.deadline / 4)

    def hear(self, found: Silence | None) -> None:
        """Learn how it is now.

        Raises:
            RunError: nothing was heard for too long.
        """
        seconds, told = (0.0, "") if found is None else found
        if seconds >= self.deadline:
            deadline = format_seconds(self.deadline)
            raise RunError(f"nothing was heard for {seconds:.0f} s (cluster.stall_deadline={deadline}): {told}")
        if seconds >= self._next:
            while seconds >= self._next:
                self._next *= 2
            self._tell(f"nothing was heard for {seconds:.0f} s: {told}")
        elif seconds < FIRST_SECONDS < self._next:
            self._next = FIRST_SECONDS
            self._tell(f"it goes on, after a silence of {self._longest:.0f} s")
            self._longest = 0.0
        self._longest = max(self._longest, seconds)

    def _tell(self, text: str) -> None:
        self.say(text)
        self.notes.append(text)
