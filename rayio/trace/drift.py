"""What a host's clock strays from the driver's while a run goes, and spans whose times do not.

Each host's time was agreed on as its actors started. From then on it is measured now and then how far the clock has
strayed, and spans are corrected before they leave their process: a barrier has kept to the clock as it was, so that
what ranks waited is what they really waited, and what moves is where on the common time that lies.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

#: The least that corrected time goes on while the host's own does: times never change their order.
SLOWEST = 0.5


class Stray(NamedTuple):
    """What has to be added to a host's time, as it was measured at a time of its own (ns)."""

    at: int
    ns: int


class Course:
    """What is added to a host's times: a line that bends where something new is learnt, and never jumps.

    What was said of a time once is said of it ever after, as long as nobody asks for times to come: spans that touch
    go on touching. A clock that runs too fast by the same all the time is followed exactly from the second measurement
    on; the first is caught up with until the next.
    """

    def __init__(self, began: int) -> None:
        self._last = Stray(began, 0)
        self._rate = 0.0
        #: The bends: at which time (ns), what is added there, and how much more with every nanosecond after it.
        self._bends: list[tuple[int, float, float]] = [(began, 0.0, 0.0)]

    @property
    def is_straight(self) -> bool:
        """Whether nothing is added to any time."""
        return len(self._bends) == 1

    def learn(self, now: int, stray: Stray, until: int) -> None:
        """Take in a measurement at ``now``, so as to have caught up with it at ``until``, when the next is due."""
        if stray.at <= self._last.at or until <= now:
            return
        self._rate = (stray.ns - self._last.ns) / (stray.at - self._last.at)
        self._last = stray
        here = self.at(now)
        there = stray.ns + self._rate * (until - stray.at)
        slope = max((there - here) / (until - now), SLOWEST - 1)
        self._bends = [bend for bend in self._bends if bend[0] < now]
        self._bends += [(now, here, slope), (until, here + slope * (until - now), max(self._rate, SLOWEST - 1))]

    def at(self, time: int) -> float:
        """What is added to a time."""
        begin, added, slope = self._bends[max(0, bisect_right(self._bends, time, key=lambda bend: bend[0]) - 1)]
        return added + slope * max(0, time - begin)

    def of(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """What is added to each of many times, to the nanosecond."""
        import numpy as np

        bends = np.array([bend[0] for bend in self._bends], np.int64)
        added, slope = (np.array([bend[part] for bend in self._bends]) for part in (1, 2))
        bend = np.maximum(np.searchsorted(bends, times, side="right") - 1, 0)
        since = np.maximum(times - bends[bend], 0)
        found: NDArray[np.int64] = np.rint(added[bend] + slope[bend] * since).astype(np.int64)
        return found

    def corrected(self, spans: pa.Table) -> pa.Table:
        """Spans with their times corrected: both ends of each."""
        if self.is_straight:
            return spans
        import pyarrow as pa

        from rayio.trace.arrow import plain

        start = plain(spans["start_ns"])
        end = start + plain(spans["duration_ns"])
        begun, over = start + self.of(start), end + self.of(end)
        for name, column in (("start_ns", begun), ("duration_ns", over - begun)):
            place = spans.schema.get_field_index(name)
            spans = spans.set_column(place, spans.schema.field(name), pa.array(column))
        return spans
