"""Correction of the clock of an actor on another host."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

from ray.exceptions import RayError

from rayio.engines.ray.transport.remote import RemoteTimekeeper
from rayio.model.kernel import WallKernel
from rayio.trace.clocks import FIRST_WAIT_NS, LONGEST_WAIT_NS, Anchor, boot_id, stray
from rayio.trace.drift import Course


class Keeper:
    """Periodic measurement of this host's clock drift; the actors of a host take turns."""

    def __init__(self, anchor: Anchor, collector: Any, born: int) -> None:
        self.anchor = anchor
        self.timekeeper = RemoteTimekeeper(collector)
        self.course = Course(born)
        self._due, self._wait = born + FIRST_WAIT_NS, FIRST_WAIT_NS

    @classmethod
    def of(cls, anchor: Anchor, collector: Any, born: int) -> Keeper | None:
        """Return a keeper, or None if this host's clock is the driver's."""
        return None if anchor.boot_id == boot_id() else cls(anchor, collector, born)

    async def learn(self, kernel: WallKernel, *, is_last: bool = False) -> None:
        """Measure the drift if it is due or the run ends; a thread waits for the answers."""
        now = kernel.now()
        if now < self._due and not is_last:
            return
        measure = partial(stray, self.anchor, kernel.anchor, self.timekeeper, is_last=is_last)
        with contextlib.suppress(RayError):  # without an answer the correction stays
            if (drift := await asyncio.to_thread(measure)) is not None:
                now = kernel.now()
                self.course.learn(now, drift, now + self._wait)
        self._due, self._wait = now + self._wait, min(2 * self._wait, LONGEST_WAIT_NS)
