"""A run while it goes, as records: the counts of engines, with numbers of the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rayio.records.running import RUNNING, Live, LiveQueues, LiveRecent

RECENT_SECONDS = 10.0

#: Phases of steps, for shares and AU.
OF_STEPS = ("data_wait", "device_copy", "bubble", "compute", "sync", "checkpoint", "evaluate", "overshoot")


class Watched:
    """The record of a run at each look, with numbers of the seconds before it."""

    def __init__(self, begun: Live) -> None:
        self.live = begun
        self._looks: deque[Live] = deque()

    def look(self, progress: Mapping[str, Any], seconds: float, updated: str) -> Live:
        """Return the record for the sums of an engine (``rayio.trace.progress``), ``seconds`` after the ranks began."""
        levels = progress.get("levels")
        now = replace(
            self.live, state=RUNNING, updated=updated, seconds=seconds, steps=progress["steps"],
            nbytes=progress["bytes"], spans=progress["spans"], restarts=len(progress.get("restarts", ())),
            time={name: ns / 1e9 for name, ns in progress["time"].items()},
            waits=dict(progress.get("waits", {})),
            samples=self.live.samples if levels is None or not levels.ranks
            else levels.samples // self.live.ranks_of_sample,
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
    """Return the numbers between two looks; None where no time passed."""
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
