"""The announced barrier: ranks announce their deadlines beforehand, and learn the latest one.

Compute is a sleep of known length, so no rank waits for a message after it: the arrival is sent when the compute begins
and carries its deadline; the answer, the latest deadline of all, arrives before the compute ends.
"""

from __future__ import annotations

from collections.abc import Callable

from rayio.model.kernel import Future, Kernel
from rayio.model.queue import StaleAttemptError
from rayio.scenario.meetings import ALL, Meetings

#: Epoch and step of a meeting, and the number of the group that meets.
Step = tuple[int, int, int]


def _everybody(rank: int, epoch: int, step: int, group: int) -> bool:
    return True


def _all(rank: int, epoch: int, step: int) -> int:
    return ALL


class BarrierState:
    """The awaited ranks by step. Arrivals are keyed by rank, so a repeated one never counts twice.

    ``parties(epoch, step, group)`` is the number of ranks that meet there; ``meets(rank, epoch, step, group)`` is True
    for these ranks, because ranks may run out of steps before an epoch ends. ``group(rank, epoch, step)`` is the group
    that a rank meets. ``at_once`` is the most groups that may meet at about the same time.
    """

    def __init__(
        self,
        parties: Callable[[int, int, int], int],
        meets: Callable[[int, int, int, int], bool] = _everybody,
        group: Callable[[int, int, int], int] = _all,
        at_once: int = 1,
    ) -> None:
        self.parties = parties
        self.meets = meets
        self.group = group
        self._kept = 4 * at_once
        self.attempt = 0
        self.deadlines: dict[Step, dict[int, int]] = {}
        #: Number of ranks that meet at each of these steps.
        self._awaited: dict[Step, int] = {}
        #: Latest deadline of recently released steps, for arrivals repeated after a lost answer.
        self.released: dict[Step, int] = {}

    @classmethod
    def of(cls, meetings: Meetings, meets: Callable[[int, int, int, int], bool]) -> BarrierState:
        """Return the state for the meetings of a run."""
        group = _all if meetings.is_every_step else meetings.group
        return cls(meetings.parties, meets, group, meetings.at_once)

    def arrive(self, rank: int, here: Step, attempt: int, deadline: int) -> dict[Step, int]:
        """Record an arrival at a meeting; return every step that it releases with the latest deadline of its parties.

        A rank can only be at a step if all earlier ones where it meets others were released; so ranks that still wait
        there (this state was lost in a restart) are released too.

        Raises:
            StaleAttemptError: the message belongs to an older attempt.
        """
        if attempt < self.attempt:
            raise StaleAttemptError(
                f"the barrier is at attempt {self.attempt}; refused rank {rank} of attempt {attempt}"
            )
        if attempt > self.attempt:
            self.attempt = attempt
            self.deadlines.clear()
            self._awaited.clear()
            self.released.clear()
        if here in self.released:
            return {here: self.released[here]}
        arrived = self.deadlines.get(here)
        if arrived is None:
            arrived = self.deadlines[here] = {}
            self._awaited[here] = self.parties(*here)
        arrived[rank] = deadline
        is_here = len(arrived) >= self._awaited[here]
        if len(self.deadlines) == 1:
            if not is_here:
                return {}
            done = [here]
        else:
            done = [s for s in self.deadlines if s < here and self.meets(rank, *s)] + [here] * is_here
        if not done:
            return {}
        out = {}
        for step_done in done:
            out[step_done] = max(self.deadlines.pop(step_done).values())
            del self._awaited[step_done]
        self.released.update(out)
        while len(self.released) > self._kept:
            del self.released[min(self.released)]
        return out


def at_once(future: Future, latest: int, meeting: Step) -> None:
    """Wake the waiters."""
    future.set_result(latest)


class Barrier:
    """The waiting around a :class:`BarrierState`, for any kernel; ``answer`` passes a meeting's latest deadline on."""

    def __init__(
        self,
        kernel: Kernel,
        state: BarrierState,
        answer: Callable[[Future, int, Step], None] = at_once,
    ) -> None:
        self.kernel = kernel
        self.state = state
        self._answer = answer
        self._waiting: dict[Step, Future] = {}

    def announce(self, rank: int, epoch: int, step: int, attempt: int, deadline: int) -> Future:
        """Announce that ``rank`` ends its step at ``deadline`` (ns); the future has the step's latest deadline."""
        state = self.state
        here = (epoch, step, ALL if state.group is _all else state.group(rank, epoch, step))
        if not (released := state.arrive(rank, here, attempt, deadline)):
            return self._waiting.get(here) or self._awaited(here)
        for key, latest in released.items():
            if key != here and (waiting := self._waiting.pop(key, None)) is not None:
                self._answer(waiting, latest, key)
        future = self._waiting.get(here) or self._awaited(here)
        if here in released:
            del self._waiting[here]
            self._answer(future, released[here], here)
        return future

    def _awaited(self, here: Step) -> Future:
        epoch, step, _ = here
        future = self._waiting[here] = self.kernel.future(f"the other ranks at epoch {epoch}, step {step}")
        return future
