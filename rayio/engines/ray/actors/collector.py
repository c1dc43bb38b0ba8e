"""The collector: one actor beside the driver, which receives every actor's spans and writes the run directory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from rayio.engines.ray.actors.showing import Showing
from rayio.errors import RayioError
from rayio.model.cpu_account import ProcessCpu, Stopwatch
from rayio.model.pool import record_node
from rayio.model.queue_levels import Levels
from rayio.storage.stores.opening import Settings
from rayio.trace.arrow import plain
from rayio.trace.clocks import Anchor, Clocks, Offset
from rayio.trace.parts import Parts
from rayio.trace.progress import Progress
from rayio.trace.recorder import Recorder
from rayio.trace.run_directory import RunDirectory, from_ipc


class Collector:
    """Spans of all actors, as they come in; and who was born when, so that a death is noticed and its loss named."""

    def __init__(
        self, run_directory: str, settings: Settings, anchor: Anchor, showing: Callable[[], Showing] | None = None
    ) -> None:
        self._anchor = anchor.here()
        #: What tells how the run goes; None where nobody is to be told.
        self._showing = None if showing is None else showing()
        self._clocks = Clocks()
        self.directory = RunDirectory(run_directory, settings)
        self._sums = Progress()
        self._parts = Parts(self.directory)
        #: Time (ns) of the last span received from each actor.
        self._heard: dict[str, int] = {}
        #: Actors that were started again: name, when, and how long nothing was heard of them before (seconds).
        self._restarts: list[dict[str, Any]] = []
        self._recorder = Recorder()
        #: Spans that each living actor had recorded when it was last heard, and those that the dead had.
        self._recorded: dict[str, int] = {}
        self._recorded_by_the_dead = 0
        #: How often each rank's queue said how many readers it wants, and the latest, where that changes.
        self._wishes: dict[int, tuple[int, int]] = {}
        self._failure: RayioError | None = None
        #: Whether a push is under way, and whether this process was asked to end.
        self._is_busy = self._is_ending = False
        self._cpu = Stopwatch("collector")
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, number: int, frame: object) -> None:
        """Write what is held when all processes of a job are asked to end, and write at once from then on.

        It does not end by itself: the driver asks for the rest, as long as Ray lives.
        """
        self._is_ending = True
        if not self._is_busy:
            self._parts.write()

    def ready(self) -> dict[str, Any]:
        """Answer when the actor has started."""
        return {"name": "collector", "pid": os.getpid()}

    def now(self) -> int:
        """The time that the run goes by, in ns since the Unix epoch."""
        return self._anchor.ns + time.perf_counter_ns()

    def met(self, boot_id: str, node: int, estimate: Offset | None, own_ns: int) -> int | None:
        """See ``rayio.trace.clocks.Timekeeper``."""
        return self._clocks.met(boot_id, node, estimate, own_ns)

    def wants_drift(self, boot_id: str) -> bool:
        """See ``rayio.trace.clocks.Timekeeper``."""
        return self._clocks.wants_drift(boot_id)

    def drifted(self, boot_id: str, estimate: Offset) -> None:
        """See ``rayio.trace.clocks.Timekeeper``."""
        self._clocks.drifted(boot_id, estimate)

    def alive(self, name: str) -> None:
        """Note that an actor that records no spans lives."""
        self._heard[name] = self.now()

    def born(self, name: str, node: int, pid: int, now: int | None, restarted: bool) -> None:
        """Note that an actor has started, now or at a time of the run's clock.

        After a restart, the time since it was last heard is a ``lost`` interval: what it had not sent is gone, and who
        needed it waited.
        """
        now = self.now() if now is None else now
        self._recorded_by_the_dead += self._recorded.pop(name, 0)
        if restarted:
            if self._showing is not None:
                self._showing.died(name)
            since = self._heard.get(name, now)
            self._restarts.append({"actor": name, "pid": pid, "at_ns": now, "silent_seconds": (now - since) / 1e9})
            role, _, index = name.partition("-")
            writer = self._recorder.register(role, index, node)
            self._recorder.add(writer, "lost", since, now, 1, status="lost")
            self._parts.keep(self._recorder.drain())
        self._heard[name] = now

    def wish(self, rank: int, workers: int) -> None:
        """Note how many readers a rank's queue wants, for the driver."""
        number, _ = self._wishes.get(rank, (0, 0))
        self._wishes[rank] = number + 1, workers

    def lived(self, number: int, asked: int, up: int | None, gone: int) -> None:
        """Record the life of a node that came for readers (ns), which the driver saw."""
        record_node(self._recorder, number, asked, up, gone)
        self._parts.keep(self._recorder.drain())

    def spent(self) -> tuple[int, ProcessCpu | None]:
        """Answer as a role's ``flush`` does: its own spans count elsewhere, and this is what its work took."""
        return 0, self._cpu.read()

    def push(self, name: str, message: bytes, recorded: int) -> None:
        """Take in an actor's spans, as Arrow IPC, and how many its process has recorded and sent until now."""
        self._cpu.begin()
        self._recorded[name] = recorded
        if self._failure is not None:
            return
        table = from_ipc(message)
        ends = plain(table["start_ns"]) + plain(table["duration_ns"])
        self._heard[name] = max(self._heard.get(name, 0), int(ends.max(initial=0)))
        self._sums.add(table)
        if self._showing is not None:
            self._showing.add(table)
        self._is_busy = True
        try:
            self._parts.keep(table)
            if self._is_ending:
                self._parts.write()
        except RayioError as error:  # nobody waits for this call: the driver hears of it when it next asks
            self._failure = error
        finally:
            self._is_busy = False

    def level(self, name: str, levels: Levels) -> None:
        """Take in what an actor's queues hold, and what its ranks have got."""
        if self._showing is not None:
            self._showing.level(name, levels)

    def progress(self, is_last: bool = False) -> dict[str, Any]:
        """The sums so far, the restarts, and where it is told how the run goes, what that says.

        Raises:
            StorageError: spans could not be written.
        """
        if self._failure is not None:
            raise self._failure
        sums = {
            **self._sums.snapshot(), "restarts": list(self._restarts), "stored": self._parts.stored,
            "wishes": self._wishes,
        }  # fmt: skip
        return sums if self._showing is None else self._showing.look(sums, self.now(), is_last=is_last)

    def finish(self) -> dict[str, Any]:
        """Write what is left; everything that was received is on disk when this returns.

        ``recorded`` counts the spans that every process had recorded when it was last heard; ``clocks`` says of
        emulated nodes on other hosts what their clocks were found to be.
        """
        self._parts.write(is_last=True)
        self.directory.close()
        recorded = sum(self._recorded.values()) + self._recorded_by_the_dead + self._recorder.recorded
        return {**self.progress(is_last=True), "recorded": recorded, "clocks": self._clocks.of_node}
