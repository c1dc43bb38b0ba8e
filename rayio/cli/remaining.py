"""The time that is left of a command, shown only once it is known within a factor of two."""

from __future__ import annotations

from typing import NamedTuple

#: Nothing is estimated before this many seconds of progress, nor before this share is done.
FIRST_SECONDS, FIRST_SHARE = 2.0, 0.1
#: The newest estimate must agree within this factor with those of the last half of the time.
FACTOR = 1.5
#: Differences below this do not matter to who waits (s).
TRIFLE_SECONDS = 3.0
#: Moments are kept that are apart by at least this part of the time since the start.
APART = 1 / 128


class Moment(NamedTuple):
    """A progress: when, the share done, and the end foreseen then (0 without one)."""

    time: float
    share: float
    end: float


class Remaining:
    """An estimate of the remaining time from the shares done, at the pace of the last half of the time.

    Time counts from the first progress, because a command may be slow to start. The end is known once the estimates of
    the last half of the time agree with the newest. Progress that stops for longer than it should have taken to the end
    makes it unknown again.
    """

    def __init__(self) -> None:
        self._moments: list[Moment] = []
        #: The share at the start, when nothing was done yet, and the last progress.
        self._first = self._last = (0.0, -1.0)

    def restart(self) -> None:
        """Begin again: the next share belongs to another part of the command."""
        self.__init__()  # type: ignore[misc]

    def at(self, now: float, share: float) -> float | None:
        """Return the seconds left at ``now`` with ``share`` done (0 to 1); None while they are not known."""
        if share < self._last[1] or self._last[1] < 0:
            self.restart()
            self._first = self._last = (now, share)
            return None
        has_moved = share > self._last[1]
        if has_moved:
            self._last = (now, share)
            if not self._moments:
                self._moments.append(Moment(now, share, 0.0))
        if not self._moments or share > 1:
            return None
        end = self._end(now)
        if has_moved and now - self._moments[-1].time >= APART * (now - self._moments[0].time):
            self._moments.append(Moment(now, share, end))
        return end - now if end > now and self._is_known(now, end) else None

    def _end(self, now: float) -> float:
        """Return the time of the end at the pace of the last half of the time; 0 without one."""
        began, (then, done) = self._moments[0].time, self._last
        earlier = [moment for moment in self._moments if moment.time <= (began + now) / 2 and moment.share < done]
        if not earlier or then - began < FIRST_SECONDS or done - self._first[1] < FIRST_SHARE:
            return 0.0
        since = earlier[-1]
        return then + (then - since.time) * (1 - done) / (done - since.share)

    def _is_known(self, now: float, end: float) -> bool:
        half = [m for m in self._moments if m.time >= (self._moments[0].time + now) / 2]
        return bool(half) and all(m.end and _agree(end - now, m.end - now) for m in half)


def _agree(left: float, other: float) -> bool:
    return abs(left - other) <= TRIFLE_SECONDS or (other > 0 and 1 / FACTOR <= left / other <= FACTOR)


def words(seconds: float) -> str:
    """Return the remaining time as text.

    >>> words(90.2), words(3725)
    ('about 1:30 left', 'about 1:02:05 left')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"about {hours}:{minutes:02d}:{rest:02d} left" if hours else f"about {minutes}:{rest:02d} left"
