"""One clock per host: an anchor that turns ``perf_counter_ns``, common to all its processes, into time of day.

Hosts agree on the driver's: an actor elsewhere asks a few times what time it is there, and takes the answer that came
back soonest. So spans are recorded in one time, and nothing is to be corrected when they are read. While the run goes,
and at its end, one actor of each host asks again: what clocks drift apart is taken out of spans before they are stored
(``drift.py``), and told; barriers keep to the clock as it is, so what ranks wait for each other is what they waited.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psutil

from rayio.trace.drift import Stray

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Name this boot of this host; processes with equal names share ``perf_counter_ns``."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"booted-{psutil.boot_time():.0f}"


@dataclass(frozen=True, slots=True)
class Anchor:
    """What to add to ``perf_counter_ns`` on one boot of one host to get nanoseconds since the Unix epoch."""

    boot_id: str
    ns: int

    @classmethod
    def new(cls) -> Anchor:
        """Read both clocks of this host once."""
        return cls(boot_id(), time.time_ns() - time.perf_counter_ns())

    def here(self) -> Anchor:
        """This anchor where it holds, else one of this host."""
        return self if self.boot_id == boot_id() else Anchor.new()


class Ping(NamedTuple):
    """One question for the time: this clock's when it was sent and answered, and in between the other's (ns)."""

    sent: int
    other: int
    received: int


class Offset(NamedTuple):
    """What to add to this clock to get the other's, and how far from the truth that may be (ns)."""

    ns: int
    error_ns: int


#: Questions that an actor on another host asks.
PINGS = 16
#: How long after each other a host asks while the run goes (ns): twice as long each time, up to the longest.
FIRST_WAIT_NS, LONGEST_WAIT_NS = 500_000_000, 10_000_000_000


def estimate(pings: Sequence[Ping]) -> Offset:
    """Estimate the offset of two clocks from the ping with the shortest way.

    The other clock was read at some time on that way; in its middle, for all one knows. So the error is at most half of
    the shortest way, as long as clocks run alike while the pings last.

    Raises:
        ValueError: there is no ping.
    """
    best = min(pings, key=lambda ping: ping.received - ping.sent)
    return Offset(best.other - (best.sent + best.received) // 2, (best.received - best.sent + 1) // 2)


class Timekeeper(Protocol):
    """Who has the time that a run goes by, and knows which other hosts have been told."""

    def now(self) -> int:
        """The time, in ns since the Unix epoch."""

    def met(self, boot_id: str, node: int, found: Offset | None, own_ns: int) -> int | None:
        """The anchor of the host of this boot; ``found`` is one that an actor there estimated.

        All actors of a host use the first, for they share a clock; None when there is none yet. ``node`` is the
        emulated node that asks, ``own_ns`` the anchor that it would have by its own time of day.
        """

    def wants_drift(self, boot_id: str, at: int | None) -> bool:
        """Say to the first actor of the host of this boot that it is to ask for the time again.

        That is when its clock is ``at`` a time that it is due, or as the run ends (None).
        """

    def drifted(self, boot_id: str, found: Offset, at: int) -> None:
        """Note the anchor that it estimated then, when its clock was ``at``."""

    def strayed(self, boot_id: str) -> Stray | None:
        """How far that host's clock was found to have strayed, the last time that an actor there asked."""


def ask(timekeeper: Timekeeper, clock: Callable[[], int]) -> Offset:
    """Estimate the anchor of this host from a few questions."""
    return estimate([Ping(clock(), timekeeper.now(), clock()) for _ in range(PINGS)])


def stray(
    anchor: Anchor,
    own_ns: int,
    timekeeper: Timekeeper,
    clock: Callable[[], int] = time.perf_counter_ns,
    *,
    is_last: bool = False,
) -> Stray | None:
    """How far this host's clock has strayed in a run that goes by ``anchor``, measured now if nobody else there has.

    ``own_ns`` is the anchor that this host agreed on. None where that is the run's own, or nothing is known yet.
    """
    here = boot_id()
    if here == anchor.boot_id:
        return None
    if timekeeper.wants_drift(here, None if is_last else own_ns + clock()):
        timekeeper.drifted(here, ask(timekeeper, clock), own_ns + clock())
    return timekeeper.strayed(here)


def agree(anchor: Anchor, node: int, timekeeper: Timekeeper, clock: Callable[[], int] = time.perf_counter_ns) -> int:
    """The anchor to use on this host in a run that goes by ``anchor``; exactly that one where it holds."""
    here = anchor.here()
    if here is anchor:
        return anchor.ns
    known = timekeeper.met(here.boot_id, node, None, here.ns)
    if known is None:
        known = timekeeper.met(here.boot_id, node, ask(timekeeper, clock), here.ns)
    assert known is not None
    return known


#: Drift (ns) that a user is told of: less than a step's own noise is no news.
WORTH_TELLING = 1_000_000


def drifts(of_node: Mapping[Any, Mapping[str, Any]]) -> list[str]:
    """A sentence for each host whose clock is known to have drifted from the driver's by a millisecond or more."""
    nodes: dict[str, list[Any]] = {}
    for node, said in of_node.items():
        if abs(said.get("drift_ns", 0)) >= max(WORTH_TELLING, said.get("drift_error_ns", 0)):
            nodes.setdefault(str(said["boot_id"]), []).append(node)
    sentences = []
    for of_host in nodes.values():
        said, listed = of_node[of_host[0]], ", ".join(map(str, of_host))
        drift, error = abs(said["drift_ns"]) / 1e6, said["drift_error_ns"] / 1e6
        sentences.append(
            f"the clock of node {listed} drifted {drift:.1f} ms (± {error:.1f}) from the driver's during the run: "
            "times of its spans are corrected; ranks really waited for it, in sync; have the hosts' clocks kept by NTP "
            "or PTP"
        )
    return sentences


class Clocks:
    """The anchors of the hosts of a run, by boot; and what run.json says of each emulated node."""

    def __init__(self) -> None:
        self._found: dict[str, Offset] = {}
        #: Boots of hosts that were asked again at the end.
        self._asked: set[str] = set()
        #: When each host is to ask again, by its own clock, and after how long that is; and what it found last.
        self._due: dict[str, tuple[int, int]] = {}
        self._strayed: dict[str, Stray] = {}
        #: By emulated node: its boot, how far its own time of day was from the driver's, and how sure that is; at the
        #: end also what is to be added to the times of its spans by then, and how sure that is.
        self.of_node: dict[int, dict[str, str | int]] = {}

    def met(self, boot_id: str, node: int, found: Offset | None, own_ns: int) -> int | None:
        """See :class:`Timekeeper`."""
        if found is not None:
            self._found.setdefault(boot_id, found)
        if (known := self._found.get(boot_id)) is None:
            return None
        self.of_node.setdefault(node, {"boot_id": boot_id, "offset_ns": own_ns - known.ns, "error_ns": known.error_ns})
        return known.ns

    def wants_drift(self, boot_id: str, at: int | None) -> bool:
        """See :class:`Timekeeper`."""
        if boot_id not in self._found:
            return False
        if at is None:
            is_wanted = boot_id not in self._asked
            self._asked.add(boot_id)
            return is_wanted
        due, wait = self._due.get(boot_id, (at, FIRST_WAIT_NS))
        if at >= due:
            self._due[boot_id] = at + wait, min(2 * wait, LONGEST_WAIT_NS)
        return at >= due

    def strayed(self, boot_id: str) -> Stray | None:
        """See :class:`Timekeeper`."""
        return self._strayed.get(boot_id)

    def drifted(self, boot_id: str, found: Offset, at: int) -> None:
        """See :class:`Timekeeper`."""
        first = self._found[boot_id]
        self._strayed[boot_id] = Stray(at, found.ns - first.ns)
        for said in self.of_node.values():
            if said["boot_id"] == boot_id:
                said |= {"drift_ns": found.ns - first.ns, "drift_error_ns": found.error_ns + first.error_ns}
