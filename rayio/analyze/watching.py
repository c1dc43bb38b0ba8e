"""A run while it goes, as numbers: what engines count becomes a record, with what the last seconds came to."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rayio.records.running import RUNNING, Live, LiveQueues, LiveRecent

#: Seconds that "the last seconds" are.
RECENT_SECONDS = 10.0

#: What a rank's time counts as, for shares and AU: what its steps are made of.
OF_STEPS = ("data_wait", "compute", "sync", "checkpoint", "evaluate", "overshoot")


class Watched:
    """Makes a record of each look at a run, which has the seconds before it in it."""

    def __init__(self, begun: Live) -> None:
        """Begin with what is known before the ranks are at work."""
        self.live = begun
        self._looks: deque[Live] = deque()

    def look(self, progress: Mapping[str, Any], seconds: float, updated: str) -> Live:
        """Take in the sums of an engine (``rayio.trace.progress``), so many seconds after the ranks began."""
        levels = progress.get("levels")
        now = replace(
            self.live, state=RUNNING, updated=updated, seconds=seconds, steps=progress["steps"],
            nbytes=progress["bytes"], spans=progress["spans"], restarts=len(progress.get("restarts", ())),
            time={name: ns / 1e9 for name, ns in progress["time"].items()},
            waits=dict(progress.get("waits", {})),
            samples=levels.samples if levels is not None and levels.ranks else self.live.samples,
            queues=None if levels is None or not levels.queues else LiveQueues(
                ready=levels.ready, leased=levels.leased, in_flight_bytes=levels.in_flight_bytes,
                readers=levels.readers, busy_readers=levels.busy_readers,
            ),
        )  # fmt: skip
        while len(self._looks) > 1 and self._looks[1].seconds <= seconds - RECENT_SECONDS:
            self._looks.popleft()
        self._looks.append(now)
        self.live = replace(now, recent=recent(self._looks[0], now))
        return self.live


def recent(before: Live, now: Live) -> LiveRecent | None:
    """What happened between two looks; None where nothing can be said."""
    seconds = now.seconds - before.seconds
    if seconds <= 0:
        return None
    spent = {name: now.time.get(name, 0.0) - before.time.get(name, 0.0) for name in OF_STEPS}
    busy = sum(spent.values())
    samples = None if now.samples is None else (now.samples - (before.samples or 0)) / seconds
    return LiveRecent(
        seconds=seconds,
        au=spent["compute"] / busy if busy else None,
        samples_per_second=samples,
        bytes_per_second=(now.nbytes - before.nbytes) / seconds,
        steps_per_second=(now.steps - before.steps) / seconds,
        shares={name: time / busy for name, time in spent.items() if time} if busy else {},
    )
