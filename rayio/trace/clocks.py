"""One clock per host: an anchor turns ``perf_counter_ns``, common to its processes, into time of day.

Hosts follow the driver's clock: an actor on another host asks for the time and uses the fastest reply. All spans are so
recorded in one time. At the end of the run one actor of each host asks again, and drift is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psutil

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the name of this boot of this host; processes with equal names share ``perf_counter_ns``."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"booted-{psutil.boot_time():.0f}"


@dataclass(frozen=True, slots=True)
class Anchor:
    """The difference from ``perf_counter_ns`` to ns since the Unix epoch, for one boot of one host."""

    boot_id: str
    ns: int

    @classmethod
    def new(cls) -> Anchor:
        """Return an anchor from both clocks of this host."""
        return cls(boot_id(), time.time_ns() - time.perf_counter_ns())

    def here(self) -> Anchor:
        """Return this anchor on its own boot, else a new one of this host."""
        return self if self.boot_id == boot_id() else Anchor.new()


class Ping(NamedTuple):
    """One exchange of times: this clock's at sending and at the reply, and the other's in between (ns)."""

    sent: int
    other: int
    received: int


class Offset(NamedTuple):
    """The difference from this clock to another, and its largest error (ns)."""

    ns: int
    error_ns: int


#: Requests for the time by an actor on another host.
PINGS = 16


def estimate(pings: Sequence[Ping]) -> Offset:
    """Return the offset of two clocks, estimated from the ping with the shortest round trip.

    The other clock was read during the round trip, on average in its middle. So the error is at most half of the round
    trip, if the clocks run equally fast meanwhile.

    Raises:
        ValueError: no pings.
    """
    best = min(pings, key=lambda ping: ping.received - ping.sent)
    return Offset(best.other - (best.sent + best.received) // 2, (best.received - best.sent + 1) // 2)


class Timekeeper(Protocol):
    """The owner of the run's clock; it records the offsets of other hosts."""

    def now(self) -> int:
        """Return the time in ns since the Unix epoch."""

    def met(self, boot_id: str, node: int, estimate: Offset | None, own_ns: int) -> int | None:
        """Return the anchor of the host of this boot; ``estimate`` is the offset estimated there.

        All actors of a host share the first; None if there is none yet. ``node`` is the emulated node of the caller,
        ``own_ns`` the anchor by its own time of day.
        """

    def wants_drift(self, boot_id: str) -> bool:
        """Return True to the first caller of its host: it must estimate the offset again."""

    def drifted(self, boot_id: str, estimate: Offset) -> None:
        """Record an offset estimated at the end of the run."""


def ask(timekeeper: Timekeeper, clock: Callable[[], int]) -> Offset:
    """Return the offset of this host's anchor, estimated from a few requests."""
    return estimate([Ping(clock(), timekeeper.now(), clock()) for _ in range(PINGS)])


def measure_drift(timekeeper: Timekeeper, clock: Callable[[], int] = time.perf_counter_ns) -> None:
    """Have the drift of this host's clock recorded, unless another actor here has done it."""
    if timekeeper.wants_drift(here := boot_id()):
        timekeeper.drifted(here, ask(timekeeper, clock))


def agree(anchor: Anchor, node: int, timekeeper: Timekeeper, clock: Callable[[], int] = time.perf_counter_ns) -> int:
    """Return the anchor for this host in a run with ``anchor``; exactly that one on its own host."""
    here = anchor.here()
    if here is anchor:
        return anchor.ns
    known = timekeeper.met(here.boot_id, node, None, here.ns)
    if known is None:
        known = timekeeper.met(here.boot_id, node, ask(timekeeper, clock), here.ns)
    assert known is not None
    return known


#: Drift (ns) that is reported; less is below a step's noise.
WORTH_TELLING = 1_000_000


def drifts(of_node: Mapping[Any, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each host whose clock drifted from the driver's by a millisecond or more."""
    nodes: dict[str, list[Any]] = {}
    for node, clock in of_node.items():
        if abs(clock.get("drift_ns", 0)) >= max(WORTH_TELLING, clock.get("drift_error_ns", 0)):
            nodes.setdefault(str(clock["boot_id"]), []).append(node)
    sentences = []
    for of_host in nodes.values():
        clock, listed = of_node[of_host[0]], ", ".join(map(str, of_host))
        drift, error = abs(clock["drift_ns"]) / 1e6, clock["drift_error_ns"] / 1e6
        sentences.append(
            f"the clock of node {listed} drifted {drift:.1f} ms (± {error:.1f}) from the driver's during the run. "
            "At the end times of its spans are off by as much; ranks really waited for it in sync. Synchronise the "
            "clocks by NTP or PTP"
        )
    return sentences


class Clocks:
    """The anchors of a run's hosts by boot, and the clock entries of run.json by emulated node."""

    def __init__(self) -> None:
        self._offsets: dict[str, Offset] = {}
        #: Boots of hosts that estimated their offset again at the end.
        self._asked_at_end: set[str] = set()
        #: By emulated node: its boot, the offset and error of its time of day from the driver's; at the end also
        #: its drift and the error of that.
        self.of_node: dict[int, dict[str, str | int]] = {}

    def met(self, boot_id: str, node: int, estimate: Offset | None, own_ns: int) -> int | None:
        """See :class:`Timekeeper`."""
        if estimate is not None:
            self._offsets.setdefault(boot_id, estimate)
        if (known := self._offsets.get(boot_id)) is None:
            return None
        self.of_node.setdefault(node, {"boot_id": boot_id, "offset_ns": own_ns - known.ns, "error_ns": known.error_ns})
        return known.ns

    def wants_drift(self, boot_id: str) -> bool:
        """See :class:`Timekeeper`."""
        is_wanted = boot_id in self._offsets and boot_id not in self._asked_at_end
        self._asked_at_end.add(boot_id)
        return is_wanted

    def drifted(self, boot_id: str, estimate: Offset) -> None:
        """See :class:`Timekeeper`."""
        first = self._offsets[boot_id]
        for clock in self.of_node.values():
            if clock["boot_id"] == boot_id:
                clock |= {"drift_ns": estimate.ns - first.ns, "drift_error_ns": estimate.error_ns + first.error_ns}
